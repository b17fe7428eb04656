"""What a role may ask of the runtime it lives in: time, seeds, and somewhere to say what it does.

A role sees a `Context` and handles to other roles, never the runtime itself. Everything recorded here
leaves as `Report`s, the same under every runtime; the monitor (runs/monitor.py) adds them up.
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

T = TypeVar("T")
R = TypeVar("R", covariant=True)

AHEAD: contextvars.ContextVar[bool] = contextvars.ContextVar("ahead", default=False)
"""Whether what runs was started by `ahead`."""


@dataclass(slots=True)
class Stat:
    """A scalar over a reporting interval: enough for its mean and its maximum."""

    total: float = 0.0
    count: float = 0.0
    maximum: float = float("-inf")

    def add(self, value: float, maximum: float | None = None, weight: float = 1.0) -> None:
        self.total += value * weight
        self.count += weight
        self.maximum = max(self.maximum, value if maximum is None else maximum)

    def merge(self, other: Stat) -> None:
        self.total += other.total
        self.count += other.count
        self.maximum = max(self.maximum, other.maximum)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


@dataclass(slots=True)
class Traffic:
    """What went over one edge: calls, bytes both ways, and the seconds the caller waited."""

    calls: int = 0
    bytes: int = 0
    waited: float = 0.0


@dataclass(slots=True)
class Report:
    """What one role did since its previous report. All values are differences, so reports add up.

    `counters`: e.g. `env_steps`, `updates`, `dropped/<name>`. `stats`: by metric name (`train/loss`, `lag`).
    `busy`: seconds per kind of work. `edges`: by edge name, `caller.service.method`.
    `lags`: steps that were used at each lag. `waiting`: the edge the role waits on right now, if any.
    `away`: it is at something long that watches itself. `stepping`: it takes environment steps, and will take more.
    `seconds`: the time the report covers. `rss_mb`: the most memory its process has had.
    `cpu_seconds`: of its process, told by the first role there alone.
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
    away: bool = False
    stepping: bool = False
    rss_mb: float = 0.0
    cpu_seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # There may be hundreds of episodes, and a pickle takes long over an object, not over a number.
        told = {name: getattr(self, name) for name in self.__slots__}
        numbers = [*chain.from_iterable((episode.reward, episode.length) for episode in self.episodes)]
        infos = {place: episode.info for place, episode in enumerate(self.episodes) if episode.info}
        return _report, (told | {"episodes": numbers}, infos)


def _report(told: dict[str, Any], infos: dict[int, dict[str, float]]) -> Report:
    numbers = iter(told["episodes"])
    episodes = list(map(Episode, numbers, numbers))
    for place, info in infos.items():
        episodes[place] = episodes[place]._replace(info=info)
    return Report(**told | {"episodes": episodes})


@dataclass(frozen=True, slots=True)
class Identity:
    """Which life of which role this is.

    `generation` counts how often the run was started or resumed, `restarts` how often this role was restarted
    since; seeds are drawn from both, so no life repeats another. `incarnation` is random at each start and marks
    messages only. `epoch` is the first half of every version a learner publishes.
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


class Job(Protocol[R]):
    """Something that blocks for long, such as a run of its own. `stop` may be called from another thread."""

    def run(self) -> R: ...

    def stop(self) -> None:
        """Make `run` return soon."""

    @property
    def seconds(self) -> float:
        """How long it took, by its own clock; known once it has run."""
        ...


class Asking(Generic[T]):
    """A call on an edge that was not made yet. It is made when it is awaited, or when it is begun."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError

    def begin(self) -> asyncio.Future[T]:
        """Make the call now; its answer comes later."""
        raise NotImplementedError


class Context:
    """One role's view of its runtime. `now` and `work` are what the runtimes do differently."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.address: str | None = None
        """Where processes on other machines reach this one; None where all of them are on one."""
        self.steps: StepCount | None = None
        """The steps of all; None where nobody here can know."""
        self.waiting: str | None = None
        self.away = self.stepping = False
        self._report = Report(identity.role, identity.index)
        self._since = self.now()

    # -- what a runtime provides ------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the runtime's clock: virtual in the simulation, monotonic elsewhere."""
        raise NotImplementedError

    def work(self, kind: str, items: int = 1) -> AbstractAsyncContextManager[None]:
        """`async with ctx.work("env_step", items=32):` around everything that takes time.

        The simulation turns it into virtual time, the other runtimes measure it.
        """
        raise NotImplementedError

    async def aside(self, kind: str, items: int, function: Callable[..., T], *args: Any) -> T:
        """Do long work; in a thread, where the program wants this role's process to answer others meanwhile."""
        async with self.work(kind, items):
            return function(*args)

    async def perform(self, kind: str, job: Job[T]) -> T:
        """Do `job` beside the event loop. A role that is halted meanwhile stops it, and waits until it has ended."""
        started, self.away = self.now(), True
        running = asyncio.get_running_loop().run_in_executor(None, job.run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            job.stop()
            with suppress(Exception):
                await running
            raise
        finally:
            self.away = False
            self.worked(kind, self.now() - started)

    def locate(self, env: int, episode: int, step: int) -> None:
        """Say which environment is about to step, so that a watchdog can name it if it never returns."""

    # -- what a role uses -------------------------------------------------------------------------

    def seed(self, stream: str) -> int:
        """A 63-bit seed that no other role, index, restart or stream of this run gets."""
        me = self.identity
        key = (zlib.crc32(me.role.encode()), me.index, me.generation, me.restarts, zlib.crc32(stream.encode()))
        words = np.random.SeedSequence(me.run_seed, spawn_key=key).generate_state(2, np.uint32)
        return (int(words[0]) << 31) ^ int(words[1])

    def rng(self, stream: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.seed(stream)))

    async def sleep(self, seconds: float) -> None:
        self.waiting = "a timer"
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting = None

    def ahead(self, call: Awaitable[T]) -> asyncio.Future[T]:
        """Start a call on an edge, or any coroutine, now and await it later; only that await counts as waiting."""
        if isinstance(call, Asking):
            return call.begin()
        context = contextvars.copy_context()
        context.run(AHEAD.set, True)
        return asyncio.get_running_loop().create_task(cast(Coroutine[Any, Any, T], call), context=context)

    async def wait(self, edge: str, answer: asyncio.Future[T]) -> T:
        """Await a call made ahead on `edge`."""
        if not answer.done():
            with Waiting(self, edge):
                self.attend(answer)
                return answer.result() if answer.done() else await answer
        return answer.result()

    def attend(self, answer: asyncio.Future[Any]) -> None:
        """Look for an answer where it is expected, if that is cheaper than a turn of the event loop."""

    def count(self, name: str, by: int = 1) -> None:
        counters = self._report.counters
        counters[name] = counters.get(name, 0) + by

    def took(self, steps: int) -> None:
        """Count environment steps, as they are taken: those of an unroll that is lost were taken, too."""
        counters = self._report.counters
        counters["env_steps"] = counters.get("env_steps", 0) + steps
        self.stepping = True
        if self.steps is not None:
            self.steps.add(steps)

    @property
    def spent(self) -> bool:
        """Whether all the steps of the run are taken. Whoever takes any asks before each unroll."""
        return self.steps is not None and self.steps.spent

    async def rest(self) -> None:
        """Take no more steps, and wait for the end of the run."""
        self.waiting, self.stepping = "the end of the run", False
        await asyncio.get_running_loop().create_future()

    def record(self, name: str, value: float, *, maximum: float | None = None, weight: float = 1.0) -> None:
        stat = self._report.stats.get(name)
        if stat is None:
            stat = self._report.stats[name] = Stat()
        stat.add(value, maximum, weight)

    def lag(self, behind: Array, weight: float | None = None) -> None:
        """Book how many updates behind some steps were when they were used, `[N]`; `weight` steps, by default N.

        Besides mean and maximum it is counted how many steps had which lag: exactly below 8, to a quarter above.
        """
        each = 1.0 if weight is None else weight / behind.size
        mean, highest = float(behind.sum()) / behind.size, float(behind.max())  # .mean() takes twice as long
        self.record("lag", mean, maximum=highest, weight=each * behind.size)
        lags = self._report.lags
        if highest >= 8:
            # All but the three highest bits are left out: four quarters for each power of two, and they stand in a row.
            coarse = np.maximum(np.frexp(behind)[1] - 3, 0)
            behind = 4 * coarse + (behind >> coarse)
        quarters = np.bincount(behind)
        for quarter in quarters.nonzero()[0].tolist():
            lag = quarter if quarter < 8 else (quarter % 4 + 4) << (quarter // 4 - 1)
            lags[lag] = lags.get(lag, 0) + round(float(quarters[quarter]) * each)

    def episode(self, episode: Episode) -> None:
        self._report.episodes.append(episode)

    # -- what the runtime collects ----------------------------------------------------------------

    def carried(self, edge: str, nbytes: int) -> None:
        traffic = self._traffic(edge)
        traffic.calls += 1
        traffic.bytes += nbytes

    def waited(self, edge: str, seconds: float) -> None:
        self._traffic(edge).waited += seconds

    def worked(self, kind: str, seconds: float) -> None:
        busy = self._report.busy
        busy[kind] = busy.get(kind, 0.0) + seconds

    def take_report(self) -> Report:
        """Everything recorded since the previous call; starts a new one."""
        now = self.now()
        report, self._report = self._report, Report(self.identity.role, self.identity.index)
        report.seconds, self._since = now - self._since, now
        report.waiting, report.away, report.stepping = self.waiting, self.away, self.stepping
        return report

    def _traffic(self, edge: str) -> Traffic:
        traffic = self._report.edges.get(edge)
        if traffic is None:
            traffic = self._report.edges[edge] = Traffic()
        return traffic


class Waiting:
    """Books the time inside it as waiting on an edge, unless the call was made ahead."""

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
            self._ctx.waited(self._edge, self._ctx.now() - self._started)
