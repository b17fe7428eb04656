"""Virtual time: an event loop whose clock jumps to the next timer instead of sleeping, and what roles see of it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from thespis.runtime.context import Context, Identity, Job, T
from thespis.runtime.costs import CostModel

LEAP = 1.0
_SLICE = 3e-3
"""Seconds for which a core stays with one role while others want it, as under Linux."""


class Deadlock(Exception):
    """Nothing can run and no timer is left: everybody waits for somebody."""


class _Selector(selectors.SelectSelector):
    """Reports no events, ever; where a real selector would sleep, it moves the clock."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. `on_time(now)` is called whenever the clock has moved.

    Before it moves by more than `LEAP` seconds, `before_leap()` is asked whether it should stay where it is.

    Everything asyncio orders by (ready order, timer) stays ordered, and no thread or socket can interfere:
    the same coroutines give the same interleaving every time.
    """

    def __init__(
        self, start: float, on_time: Callable[[float], None], before_leap: Callable[[], bool] = lambda: False
    ) -> None:
        self._virtual = start
        self._on_time, self._before_leap = on_time, before_leap
        super().__init__(_Selector(self._advance))

    def time(self) -> float:
        return self._virtual

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise Deadlock
        if timeout > 0 and not (timeout > LEAP and self._before_leap()):
            self._virtual += timeout
            self._on_time(self._virtual)


class Cores:
    """What roles work on: as many cores as there are roles, or a number that they share, first come first served."""

    def __init__(self, number: int | None) -> None:
        self._free = None if number is None else asyncio.Semaphore(number)

    async def work(self, seconds: float) -> None:
        if self._free is None or not seconds:
            await asyncio.sleep(seconds)
            return
        while True:
            async with self._free:
                await asyncio.sleep(min(seconds, _SLICE))
            seconds -= _SLICE
            if seconds <= 0:
                return


class SimulatedContext(Context):
    """Virtual time: work costs what the cost model says, however long it really took."""

    def __init__(
        self,
        identity: Identity,
        loop: VirtualLoop,
        costs: CostModel,
        cores: Cores,
        rng: np.random.Generator,
        slowdown: float,
    ) -> None:
        """`rng`: what costs are drawn with that lie in a range."""
        self._loop, self._costs, self._cores, self._rng, self._slowdown = loop, costs, cores, rng, slowdown
        self._job: Job[Any] | None = None
        self._interrupted = False
        super().__init__(identity)

    def now(self) -> float:
        return self._loop.time()

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        yield
        seconds = self._costs.work_seconds(kind, items, self._rng) * self._slowdown
        await self._cores.work(seconds)
        waits = self._costs.wait_seconds(kind, self._rng) * self._slowdown
        if waits:
            await asyncio.sleep(waits)
        self.worked(kind, seconds + waits)

    async def perform(self, kind: str, job: Job[T]) -> T:
        """Now, and then its own time passes. In a thread, because a job may have an event loop of its own."""
        self._job = job
        if self._interrupted:
            job.stop()
        try:
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(job.run).result()
        finally:
            self._job = None
        self.away = True
        try:
            await asyncio.sleep(job.seconds * self._slowdown)
        finally:
            self.away = False
        self.worked(kind, job.seconds * self._slowdown)
        return result

    def interrupt(self) -> None:
        """Stop what the role is at beside the event loop, for which everything else stands still, or begins there."""
        self._interrupted = True
        if self._job is not None:
            self._job.stop()
