"""Virtual time: an event loop whose clock jumps to the next timer instead of sleeping, and its role context."""

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

from thespis.core.context import _T, Context, Identity, Job
from thespis.core.program import RoleSpec
from thespis.runtime.cost_model import CostModel
from thespis.runtime.endpoint import Endpoint
from thespis.runtime.env_watchdog import EnvWatchdog

LEAP = 1.0
"""Seconds; before a longer jump of the clock the simulation checks whether the run has ended."""
_SLICE = 3e-3
"""Time slice of a core in seconds, as under Linux."""


class Deadlock(Exception):
    """No task can run and no timer is pending: all roles wait for each other."""


class _Selector(selectors.SelectSelector):
    """Reports no events; where a real selector would sleep, it advances the clock."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. It calls `on_time(now)` after every advance of the clock.

    Before an advance of more than `LEAP` seconds it calls `before_leap()`; True keeps the clock where it is.

    Asyncio orders tasks by readiness and timer, and no thread or socket interferes. The same coroutines therefore
    interleave in the same way every time.
    """

    def __init__(
        self, start: float, on_time: Callable[[float], None], before_leap: Callable[[], bool] = lambda: False
    ) -> None:
        self._virtual = start
        self._on_time, self._before_leap = on_time, before_leap
        super().__init__(_Selector(self._advance))

    def time(self) -> float:
        """Return the virtual time."""
        return self._virtual

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise Deadlock
        if timeout > 0 and not (timeout > LEAP and self._before_leap()):
            self._virtual += timeout
            self._on_time(self._virtual)

    def finish(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Run until the tasks are done. This does not make the loop the current one of the thread."""
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class Cores:
    """The simulated cores: one per role, or a number shared by all threads.

    Sharing is fair, as under Linux: the thread with the least core time so far is next. With many actors on a few
    cores, a learner that needs more time than each actor has to wait.
    """

    def __init__(self, number: int | None) -> None:
        self._free = number
        self._threads: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._used: defaultdict[str, float] = defaultdict(float)
        self._fair = 0.0  # core time of a thread that always wants a core
        self._wanting = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def work(self, thread: str, seconds: float) -> None:
        """Give `thread` a core for `seconds`. A thread does one thing at a time."""
        if self._free is None or not seconds:
            await asyncio.sleep(seconds)
            return
        async with self._threads[thread]:
            # Idle time earns no credit.
            self._used[thread] = max(self._used[thread], self._fair)
            self._wanting += 1
            try:
                while seconds > 0:
                    await self._slice(thread, min(seconds, _SLICE))
                    seconds -= _SLICE
            finally:
                self._wanting -= 1

    async def _slice(self, thread: str, seconds: float) -> None:
        await self._acquire(self._used[thread])
        try:
            await asyncio.sleep(seconds)
        finally:
            self._used[thread] += seconds
            self._fair += seconds / self._wanting
            self._release()

    async def _acquire(self, used: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (used, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release()  # the core was already assigned
            raise

    def _release(self) -> None:
        assert self._free is not None
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class SimulatedContext(Context):
    """Role context on virtual time: the cost model, not the real duration, decides how long work takes."""

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
        watchdog: EnvWatchdog | None = None,
    ) -> None:
        """`rng`: draws costs from their ranges. `thread`: `run_in_thread` uses a separate thread."""
        self._watchdog = watchdog
        self._loop, self._costs, self._cores, self._rng, self._slowdown = loop, costs, cores, rng, slowdown
        self._thread, self._job_thread = process, f"{process}, {identity}" if thread else process
        self._job: Job[Any] | None = None
        self._interrupted = False
        super().__init__(identity)

    def now(self) -> float:
        """Return the virtual time."""
        return self._loop.time()

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        """Do work; its cost passes afterwards."""
        if kind == "env_step" and self._watchdog is not None:
            with self._watchdog.step(str(self.identity)):
                yield
        else:
            yield
        await self._let_pass(self._thread, kind, items)

    def locate(self, env: int, episode: int, step: int) -> None:
        """Write the position of an environment to the status page."""
        if self._watchdog is not None:
            self._watchdog.status.locate(env, episode, step)

    async def run_in_thread(self, kind: str, items: int, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function; its cost passes on the thread's core."""
        result = function(*args)
        await self._let_pass(self._job_thread, kind, items)
        return result

    async def _let_pass(self, thread: str, kind: str, items: int) -> None:
        """Let the cost of the work pass."""
        seconds = self._costs.work_seconds(kind, items, self._rng) * self._slowdown
        await self._cores.work(thread, seconds)
        waits = self._costs.wait_seconds(kind, self._rng) * self._slowdown
        if waits:
            await asyncio.sleep(waits)
        self.count_work(kind, seconds + waits)

    async def run_job(self, kind: str, job: Job[_T]) -> _T:
        """Run a job at once, then let its time pass. It runs in a thread because it may have its own event loop."""
        self._job = job
        if self._interrupted:
            job.stop()
        try:
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(job.run).result()
        finally:
            self._job = None
        self.in_job = True
        try:
            await asyncio.sleep(job.seconds * self._slowdown)
        finally:
            self.in_job = False
        self.count_work(kind, job.seconds * self._slowdown)
        return result

    def interrupt(self) -> None:
        """Interrupt the job this role runs outside the event loop, now or as soon as it starts."""
        self._interrupted = True
        if self._job is not None:
            self._job.stop()


@dataclass(slots=True)
class RoleIncarnation:
    """An incarnation of a role in the simulation."""

    spec: RoleSpec
    ctx: SimulatedContext
    role: Any
    endpoint: Endpoint
    task: asyncio.Task[None] | None = None
    attempts: dict[asyncio.Task[Any], tuple[str, int, int]] = field(default_factory=dict)
    """Calls in transit to the role or being served, and their callers."""
