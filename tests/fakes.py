"""Fakes that several test modules share: contexts, edges, and the services behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import numpy as np

from thespis.core.context import Context
from thespis.core.types import Stream, Unroll, Version, VersionedWeights
from thespis.networks.policy_runner import export_weights

# -- contexts ---------------------------------------------------------------------------------------


class FakeContext(Context):
    """A context whose time only changes when a test sets it. Work does not yield to the event loop."""

    time = 0.0

    def now(self) -> float:
        return self.time

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        yield

    def counters(self) -> dict[str, int]:
        """Return all counters since the last report."""
        return dict(self._report.counters)


class YieldingContext(FakeContext):
    """A context that yields to other tasks after each piece of work, as in a process with several roles."""

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0)


# -- edges ------------------------------------------------------------------------------------------


class FakeEdge:
    """An edge to a method of an object in the same process."""

    def __init__(self, method: Callable[..., Awaitable[Any]], name: str | None = None) -> None:
        self.name = name or f"caller.service.{method.__name__}"
        self.method = method

    async def __call__(self, *args: Any) -> Any:
        return await self.method(*args)


class YieldingEdge(FakeEdge):
    """An edge that yields to other tasks before each call."""

    async def __call__(self, *args: Any) -> Any:
        await asyncio.sleep(0)
        return await super().__call__(*args)


class Insert:
    """An insert edge that collects unrolls, and sets `enough` once it has `wanted`."""

    name = "actor.queue.insert"

    def __init__(self, wanted: int) -> None:
        self.unrolls: list[Unroll] = []
        self.wanted = wanted
        self.enough = asyncio.Event()

    async def __call__(self, unroll: Unroll) -> None:
        self.unrolls.append(unroll)
        await asyncio.sleep(0)
        if len(self.unrolls) >= self.wanted:
            self.enough.set()


class StreamInsert(Insert):
    """The same, for actors that also send the stream of an unroll."""

    async def __call__(self, stream: Stream, unroll: Unroll) -> int:  # type: ignore[override]
        await super().__call__(unroll)
        return 0


class Pull:
    """A pull edge that returns new weights at every call, with larger changes than those of an update."""

    name = "actor.weights.pull"

    def __init__(self, network: Any) -> None:
        self._network = network
        self._rng = np.random.default_rng(0)
        self.given: dict[int, dict[str, Any]] = {}

    async def __call__(self, newer_than: Version | None) -> VersionedWeights:
        version = Version(2, len(self.given))
        weights = {
            name: value + self._rng.normal(scale=0.3, size=value.shape).astype(value.dtype)
            if value.dtype == np.float32 and "normal" not in name
            else value
            for name, value in export_weights(self._network).items()
        }
        self.given[version.packed()] = weights
        return VersionedWeights(version, weights)


# -- event loop -------------------------------------------------------------------------------------


class UnusedReplica:
    """A learner whose state the exchange never uses, because a parameter server holds it."""

    updates = 0

    async def snapshot(self) -> Any:
        raise NotImplementedError

    def restore(self, arrays: Any, values: Any) -> None:
        raise NotImplementedError


def play(scene: Coroutine[Any, Any, None], seconds: float = 20.0) -> None:
    """Run a scene, which must end within `seconds`."""
    asyncio.run(asyncio.wait_for(scene, seconds))


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


class Worker(Protocol):
    """A role that drives itself."""

    async def run(self) -> None: ...

    async def close(self) -> None: ...


async def run_until(enough: asyncio.Event, worker: Worker, *others: Coroutine[Any, Any, None]) -> None:
    """Run a worker and other coroutines until the event is set; none may end before."""
    running = [asyncio.ensure_future(run) for run in (worker.run(), *others)]
    ends = asyncio.ensure_future(enough.wait())
    await asyncio.wait({*running, ends}, return_when=asyncio.FIRST_COMPLETED)
    for task in (*running, ends):
        task.cancel()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), ended
    await asyncio.gather(ends, return_exceptions=True)
    await worker.close()
