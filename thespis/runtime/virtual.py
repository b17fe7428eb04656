"""Virtual time: an event loop whose clock jumps to the next timer instead of sleeping, and what roles see of it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thespis.core.context import Context, Identity, Job, T
from thespis.core.program import RoleSpec
from thespis.runtime.costs import CostModel
from thespis.runtime.endpoint import Endpoint

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

    def finish(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Run until the tasks are done. This loop never becomes the thread's own, which may have another one."""
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class Cores:
    """What roles work on: a core for each of them, or a number that all threads share.

    Shared fairly, as under Linux: of the threads that want a core, the one is next that has had least of one. With
    many actors on a few cores a learner that has more to do than each of them is the one who waits.
    """

    def __init__(self, number: int | None) -> None:
        self._free = number
        self._threads: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._had: defaultdict[str, float] = defaultdict(float)
        self._fair = 0.0  # what a thread would have had that wanted a core all the time
        self._wanting = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def work(self, thread: str, seconds: float) -> None:
        """Let `thread`, which does one thing at a time, have a core for so long."""
        if self._free is None or not seconds:
            await asyncio.sleep(seconds)
            return
        async with self._threads[thread]:
            # Nobody has a claim to what it did not want at the time.
            self._had[thread] = max(self._had[thread], self._fair)
            self._wanting += 1
            try:
                while seconds > 0:
                    await self._slice(thread, min(seconds, _SLICE))
                    seconds -= _SLICE
            finally:
                self._wanting -= 1

    async def _slice(self, thread: str, seconds: float) -> None:
        await self._take(self._had[thread])
        try:
            await asyncio.sleep(seconds)
        finally:
            self._had[thread] += seconds
            self._fair += seconds / self._wanting
            self._give()

    async def _take(self, had: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (had, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give()  # the core was given to it already
            raise

    def _give(self) -> None:
        assert self._free is not None
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class SimulatedContext(Context):
    """Virtual time: work costs what the cost model says, however long it really took."""

    def __init__(
        self,
        identity: Identity,
        loop: VirtualLoop,
        costs: CostModel,
        cores: Cores,
        rng: np.random.Generator,
        process: str,
        thread: bool = False,
        slowdown: float = 1.0,
    ) -> None:
        """`rng`: what costs are drawn with that lie in a range. `thread`: what is done aside is done in a thread."""
        self._loop, self._costs, self._cores, self._rng, self._slowdown = loop, costs, cores, rng, slowdown
        self._thread, self._beside = process, f"{process}, {identity}" if thread else process
        self._job: Job[Any] | None = None
        self._interrupted = False
        super().__init__(identity)

    def now(self) -> float:
        return self._loop.time()

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        yield
        await self._pass(self._thread, kind, items)

    async def aside(self, kind: str, items: int, function: Callable[..., T], *args: Any) -> T:
        result = function(*args)
        await self._pass(self._beside, kind, items)
        return result

    async def _pass(self, thread: str, kind: str, items: int) -> None:
        """Let the time pass that this takes."""
        seconds = self._costs.work_seconds(kind, items, self._rng) * self._slowdown
        await self._cores.work(thread, seconds)
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


@dataclass(slots=True)
class Life:
    """A role that is alive in the simulation."""

    spec: RoleSpec
    ctx: SimulatedContext
    role: Any
    endpoint: Endpoint
    task: asyncio.Task[None] | None = None
    attempts: dict[asyncio.Task[Any], tuple[str, int, int]] = field(default_factory=dict)
    """Calls on their way to it or being answered, and whose they are."""
