"""The interface between a role and its runtime: clock, seeds, waiting, and metrics.

A role holds a `Context` and its edges, and never the runtime itself:

    class Actor:
        def __init__(self, ctx: Context, insert: Insert) -> None: ...

        async def run(self) -> None:
            while not self._ctx.steps_exhausted:
                async with self._ctx.work("env_step", items=32):
                    unroll = ...
                self._ctx.count_steps(32)
                await self._insert(unroll)
            await self._ctx.wait_for_end()

The context collects everything the role records into `Report`s. Every runtime produces the same reports, and the
monitor (runs/monitor.py) sums them.
"""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from thespis.core.step_count import StepCount
from thespis.core.types import Array, Episode

_T = TypeVar("_T")
_R = TypeVar("_R", covariant=True)

AHEAD: contextvars.ContextVar[bool] = contextvars.ContextVar("ahead", default=False)
"""True inside a coroutine that `Context.ahead` started."""


@dataclass(slots=True)
class Stat:
    """Sum, weight and maximum of a scalar over a reporting interval."""

    total: float = 0.0
    count: float = 0.0
    maximum: float = float("-inf")

    def add(self, value: float, maximum: float | None = None, weight: float = 1.0) -> None:
        """Add a value. If `value` is itself a mean, `weight` and `maximum` describe the values behind it."""
        self.total += value * weight
        self.count += weight
        self.maximum = max(self.maximum, value if maximum is None else maximum)

    def merge(self, other: Stat) -> None:
        """Add all values of another stat."""
        self.total += other.total
        self.count += other.count
        self.maximum = max(self.maximum, other.maximum)

    @property
    def mean(self) -> float:
        """The weighted mean; NaN if no value was added."""
        return self.total / self.count if self.count else float("nan")


@dataclass(slots=True)
class Traffic:
    """Traffic of one edge: calls, bytes in both directions, the seconds the caller waited, and the caller's bytes."""

    calls: int = 0
    bytes: int = 0
    waited: float = 0.0
    sent: int = 0


@dataclass(slots=True)
class Report:
    """The activity of one role since its previous report. Counters and sums are increments, so reports can be added.

    `seconds`: the time that the report covers. `counters`: e.g. `env_steps`, `updates`, `dropped/<name>`.
    `stats`: by metric name (`train/loss`, `lag`). `busy`: seconds per kind of work.
    `edges`: by edge name, `caller.service.method`. `lags`: number of steps used at each lag.
    `waiting`: the edge that the role waits on at the time of the report, if any.
    `in_job`: the role runs a `Job`, which detects its own stalls.
    `stepping`: the role takes environment steps and will take more.
    `rss_mb`: peak memory of the role's process.
    `cpu_seconds`: CPU time of the role's process. Only the first role of a process reports it.
    """

    role: str
    index: int
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Stat] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    edges: dict[str, Traffic] = field(default_factory=dict)
    lags: dict[int, int] = field(default_factory=dict)
    waiting: str | None = None
    in_job: bool = False
    stepping: bool = False
    rss_mb: float = 0.0
    cpu_seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # A report may hold hundreds of episodes. Numbers pickle much faster than objects.
        values = {name: getattr(self, name) for name in self.__slots__}
        numbers = [*chain.from_iterable((episode.reward, episode.length) for episode in self.episodes)]
        infos = {index: episode.info for index, episode in enumerate(self.episodes) if episode.info}
        return _report, (values | {"episodes": numbers}, infos)


def _report(values: dict[str, Any], infos: dict[int, dict[str, float]]) -> Report:
    numbers = iter(values["episodes"])
    episodes = list(map(Episode, numbers, numbers))
    for index, info in infos.items():
        episodes[index] = episodes[index]._replace(info=info)
    return Report(**values | {"episodes": episodes})


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies one incarnation of one role.

    `generation` counts the starts and resumes of the run, and `restarts` counts the restarts of this role since then.
    Both enter every seed, so no two incarnations draw the same random numbers. `incarnation` is a random number per
    start, which marks messages and nothing else. `epoch` is the first half of every version that a learner publishes.
    """

    role: str
    index: int
    run_seed: int
    generation: int = 0
    restarts: int = 0
    epoch: int = 0
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


class Job(Protocol[_R]):
    """A long blocking task, such as a nested training run. `Context.run_job` runs it outside the event loop."""

    def run(self) -> _R:
        """Block until the job is done, and return its result."""
        ...

    def stop(self) -> None:
        """Make `run` return soon. Another thread may call this."""

    @property
    def seconds(self) -> float:
        """The duration by the job's own clock; available after `run`."""
        ...


class LazyCall(Generic[_T]):
    """A call on an edge that is not sent yet. `await` or `begin` sends it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, _T]:
        raise NotImplementedError

    def begin(self) -> asyncio.Future[_T]:
        """Send the call now and return a future of the response."""
        raise NotImplementedError


class Context:
    """One role's view of its runtime. Each runtime implements `now` and `work` in its own way."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.address: str | None = None
        """The address of this process for processes on other nodes; None if the run uses one node."""
        self.steps: StepCount | None = None
        """The environment steps of the whole run; None in a process that cannot see the shared count."""
        self.waiting: str | None = None
        """The edge or event that the role waits on now. The report of a stalled run names it."""
        self.in_job = self.stepping = False
        self.threaded = False
        """Whether `run_in_thread` uses a separate thread."""
        self._report = Report(identity.role, identity.index)
        self._since = self.now()

    # -- implemented by the runtime ---------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the runtime's clock: virtual in the simulation, monotonic elsewhere."""
        raise NotImplementedError

    def work(self, kind: str, items: int = 1) -> AbstractAsyncContextManager[None]:
        """Mark a block that takes time: `async with ctx.work("env_step", items=32):`.

        The simulation advances its virtual clock by the block's modelled cost; the other runtimes measure the block.
        """
        raise NotImplementedError

    def allocate(self, size: int) -> Array:
        """Return an uninitialised float32 vector for a message, which other processes may read without a copy.

        Nothing may write to it after it was sent.
        """
        return np.empty(size, np.float32)

    async def run_in_thread(self, kind: str, items: int, function: Callable[..., _T], *args: Any) -> _T:
        """Run `function(*args)` as work; in a separate thread if the role's placement sets `thread`."""
        async with self.work(kind, items):
            return function(*args)

    async def run_job(self, kind: str, job: Job[_T]) -> _T:
        """Run `job` in an executor thread. Cancelling this call stops the job and waits until it has returned."""
        started, self.in_job = self.now(), True
        running = asyncio.get_running_loop().run_in_executor(None, job.run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            job.stop()
            with suppress(Exception):
                await running
            raise
        finally:
            self.in_job = False
            self.count_work(kind, self.now() - started)

    def locate(self, env: int, episode: int, step: int) -> None:
        """Note the environment that is about to step, so that a watchdog can name it if the step hangs."""

    # -- used by roles ----------------------------------------------------------------------------

    def seed(self, stream: str) -> int:
        """Return a 63-bit seed that is unique to this role, index, restart and `stream` within the run."""
        me = self.identity
        key = (zlib.crc32(me.role.encode()), me.index, me.generation, me.restarts, zlib.crc32(stream.encode()))
        words = np.random.SeedSequence(me.run_seed, spawn_key=key).generate_state(2, np.uint32)
        return (int(words[0]) << 31) ^ int(words[1])

    def rng(self, stream: str) -> np.random.Generator:
        """Return a random generator seeded by `seed(stream)`."""
        return np.random.Generator(np.random.PCG64(self.seed(stream)))

    async def sleep(self, seconds: float) -> None:
        """Sleep on the runtime's clock; the simulation sleeps in virtual time."""
        self.waiting = "a timer"
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting = None

    def ahead(self, call: Awaitable[_T]) -> asyncio.Future[_T]:
        """Start a call on an edge, or any coroutine, now; await the returned future later with `wait`.

        Only the time in `wait` counts as waiting on the edge.
        """
        if isinstance(call, LazyCall):
            return call.begin()
        context = contextvars.copy_context()
        context.run(AHEAD.set, True)
        return asyncio.get_running_loop().create_task(cast(Coroutine[Any, Any, _T], call), context=context)

    async def wait(self, edge: str, answer: asyncio.Future[_T]) -> _T:
        """Await a call that `ahead` started on `edge`."""
        if not answer.done():
            with Waiting(self, edge):
                self.poll(answer)
                return answer.result() if answer.done() else await answer
        return answer.result()

    def poll(self, answer: asyncio.Future[Any]) -> None:
        """Read a pending response directly, if that is cheaper than one turn of the event loop."""

    def count(self, name: str, by: int = 1) -> None:
        """Add `by` to the counter `name`."""
        counters = self._report.counters
        counters[name] = counters.get(name, 0) + by

    def count_steps(self, steps: int) -> None:
        """Count environment steps when they are taken, so that steps of a lost unroll count as well."""
        counters = self._report.counters
        counters["env_steps"] = counters.get("env_steps", 0) + steps
        self.stepping = True
        if self.steps is not None:
            self.steps.add(steps)

    @property
    def steps_exhausted(self) -> bool:
        """Whether the run has taken all its environment steps. Roles that take steps check this before each unroll."""
        return self.steps is not None and self.steps.exhausted

    async def wait_for_end(self) -> None:
        """Stop stepping and wait until the run ends."""
        self.waiting, self.stepping = "the end of the run", False
        await asyncio.get_running_loop().create_future()

    def record(self, name: str, value: float, *, maximum: float | None = None, weight: float = 1.0) -> None:
        """Add `value` to the metric `name`; `Stat.add` explains `maximum` and `weight`."""
        stat = self._report.stats.get(name)
        if stat is None:
            stat = self._report.stats[name] = Stat()
        stat.add(value, maximum, weight)

    def lag(self, behind: Array, weight: float | None = None) -> None:
        """Record the lags of N steps that a learner uses. `behind`: int64 `[N]`. `weight`: steps represented, or N.

        The report gets mean, maximum and a histogram. The histogram is exact below 8; above, it has four bins per power
        of two.
        """
        each = 1.0 if weight is None else weight / behind.size
        mean, highest = float(behind.sum()) / behind.size, float(behind.max())  # .mean() takes twice as long
        self.record("lag", mean, maximum=highest, weight=each * behind.size)
        lags = self._report.lags
        if highest >= 8:
            # Keep only the three highest bits. The bins, four per power of two, are then consecutive integers.
            coarse = np.maximum(np.frexp(behind)[1] - 3, 0)
            behind = 4 * coarse + (behind >> coarse)
        quarters = np.bincount(behind)
        for quarter in quarters.nonzero()[0].tolist():
            lag = quarter if quarter < 8 else (quarter % 4 + 4) << (quarter // 4 - 1)
            lags[lag] = lags.get(lag, 0) + round(float(quarters[quarter]) * each)

    def episode(self, episode: Episode) -> None:
        """Record a finished training episode."""
        self._report.episodes.append(episode)

    # -- collected by the runtime -----------------------------------------------------------------

    def count_traffic(self, edge: str, nbytes: int, sent: int) -> None:
        """Count one call on `edge`, its bytes in both directions, and how many of these its caller sent."""
        traffic = self._traffic(edge)
        traffic.calls += 1
        traffic.bytes += nbytes
        traffic.sent += sent

    def count_wait(self, edge: str, seconds: float) -> None:
        """Count seconds of waiting on `edge`."""
        self._traffic(edge).waited += seconds

    def count_work(self, kind: str, seconds: float) -> None:
        """Count seconds of work of one kind."""
        busy = self._report.busy
        busy[kind] = busy.get(kind, 0.0) + seconds

    def take_report(self) -> Report:
        """Return everything recorded since the previous call, and start a new report."""
        now = self.now()
        report, self._report = self._report, Report(self.identity.role, self.identity.index)
        report.seconds, self._since = now - self._since, now
        report.waiting, report.in_job, report.stepping = self.waiting, self.in_job, self.stepping
        return report

    def _traffic(self, edge: str) -> Traffic:
        traffic = self._report.edges.get(edge)
        if traffic is None:
            traffic = self._report.edges[edge] = Traffic()
        return traffic


class Waiting:
    """Context manager that counts its duration as waiting on an edge, except inside a call that `ahead` started."""

    __slots__ = ("_ahead", "_ctx", "_edge", "_started")

    def __init__(self, ctx: Context, edge: str) -> None:
        self._ctx, self._edge, self._started, self._ahead = ctx, edge, 0.0, AHEAD.get()

    def __enter__(self) -> None:
        if not self._ahead:
            self._started = self._ctx.now()
            self._ctx.waiting = self._edge

    def __exit__(self, *exc: object) -> None:
        if not self._ahead:
            self._ctx.waiting = None
            self._ctx.count_wait(self._edge, self._ctx.now() - self._started)
