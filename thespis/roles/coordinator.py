"""Coordinator: hands out the episodes of a generation, and makes the next generation of what came back."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from thespis.algorithms.updates.evolution import Evolution, Generation
from thespis.core.budget import Budget, Spending
from thespis.core.context import Context
from thespis.core.finite import check_finite
from thespis.core.messages import Place
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Episode, Version, Versioned
from thespis.exchange.noise import NoiseTable
from thespis.networks.moments import Moments, merge

if TYPE_CHECKING:
    from thespis.algorithms.es import ES

_HISTORY = 64
"""Generations a worker may be behind and still catch up by returns alone."""
_LAST_SECONDS = 0.1
"""Longer than it takes a runtime to hear of the last generation."""
_SPENT = "es/steps_of_generations"
"""A run ends with a generation: only steps of a generation that is over are spent."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Who wants work, and which parameters it has. `generation`: None if it has none yet."""

    worker: int
    life: int
    generation: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """The episodes of one unit. `returns`: float32 `[pairs, 2]`. `lengths`: int32 `[pairs, 2]`, in steps.

    `taken`: all steps that were taken for them; where a native vector steps members that are over, more than these.
    `seen`: of all observations in it, if they are normalised. `digest`: of the parameters around which the noise was
    put, every so many generations.
    """

    generation: int
    unit: int
    returns: Array
    lengths: Array
    taken: int
    seen: Moments | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The parameters of a generation, and whatever else is needed to compute the next. `noise`: where the table is."""

    generation: int
    values: Array
    slots: dict[str, Array]
    noise: Place


@dataclass(frozen=True, slots=True)
class Order:
    """One unit of work. `news`: what leads from the worker's parameters to those of the unit's generation.

    `cap`: steps after which an episode is cut off. `moments`: by which observations are normalised.
    """

    unit: int
    cap: int
    moments: Moments | None
    news: Snapshot | tuple[Generation, ...]


class Out(NamedTuple):
    """A unit that was handed out: to whom, and when."""

    worker: int
    since: float


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """How a generation is divided into units of work, and how workers get to its parameters.

    `units`: per generation. `protocol`: seeds, or broadcast. `check_every`: generations between two comparisons of
    digests. `repeat_after`: a unit goes to a second worker after this many times the slowest before; 0 for never.
    """

    units: int
    pairs_per_unit: int
    protocol: str
    check_every: int
    repeat_after: float


class Policy(Protocol):
    """The policy that the parameters are of."""

    values: Array

    def weights(self, moments: Moments | None) -> dict[str, Array]: ...

    def load(self, weights: dict[str, Array]) -> None: ...


class Coordinator:
    """Workers ask for a unit and bring the result of the one before. A generation ends when all its units are in.

    A unit's episodes follow from the seed, the generation and the unit's number, never from who plays them. So how many
    workers there are, and who was slow or died, changes nothing about the parameters; and a unit can be given to
    a second worker at no risk: the result that comes later is dropped.
    """

    description: ClassVar = RoleDescription(
        methods={
            "order": Method("gradients", takes="returns", gives="seeds"),
            "pull": Method("weights", gives="weights"),
        },
        publishes=True,
        spends=_SPENT,
    )

    def __init__(
        self,
        ctx: Context,
        algorithm: ES,
        plan: WorkPlan,
        budget: Budget,
        policy: Policy,
        table: NoiseTable,
        moments: Moments | None,
    ) -> None:
        self._ctx, self._algorithm, self._plan = ctx, algorithm, plan
        self._policy, self._table, self._moments = policy, table, moments
        self._evolution = Evolution(algorithm, ctx.identity.run_seed, policy.values, table.values)
        self._steps = 0
        self._spending = Spending(budget, ctx.now)
        self._cap = algorithm.items.longest_episode
        self._results: dict[int, Result] = {}
        self._free = deque(range(plan.units))
        self._out: dict[int, Out] = {}
        self._lives: dict[int, int] = {}
        self._history: deque[Generation] = deque(maxlen=_HISTORY)
        self._digest = self._evolution.digest()
        self._slowest = 0.0
        """Seconds that the slowest unit of the last generation took."""
        self._took: list[float] = []
        self._snapshot: Snapshot | None = None
        self._weights: Versioned | None = None
        self._updating = False
        self._moved = asyncio.Event()

    @property
    def version(self) -> Version:
        return Version(self._ctx.identity.epoch, self._evolution.generation)

    # -- edges ------------------------------------------------------------------------------------

    async def order(self, ask: Ask, result: Result | None) -> Order:
        """The next unit to play. Waits until there is one."""
        self._welcome(ask)
        outdated = result is not None and not await self._take(result)
        unit = await self._next(ask.worker)
        news = self._snap() if outdated else self._news(ask.generation)
        return Order(unit, self._cap, self._moments, news)

    async def pull(self, newer_than: Version | None) -> Versioned | None:
        """The unperturbed policy, or None if the caller has it already."""
        if newer_than is not None and self.version <= newer_than:
            return None
        if self._weights is None or self._weights.version != self.version:
            self._weights = Versioned(self.version, self._policy.weights(self._moments))
        return self._weights

    async def close(self) -> None:
        self._table.close()

    # -- handing out ------------------------------------------------------------------------------

    def _welcome(self, ask: Ask) -> None:
        """What a life of a worker had in hand when it died is free again."""
        if self._lives.get(ask.worker, ask.life) != ask.life:
            self._release([unit for unit, out in self._out.items() if out.worker == ask.worker])
        self._lives[ask.worker] = ask.life

    def _release(self, units: list[int]) -> None:
        for unit in units:
            del self._out[unit]
            self._free.append(unit)
        self._wake()

    async def _next(self, worker: int) -> int:
        while True:
            if not self._updating and not self._spending.last(self._steps):
                if self._free:
                    unit = self._free.popleft()
                    self._out[unit] = Out(worker, self._ctx.now())
                    return unit
                late = self._overdue()
                if late is not None:
                    self._out[late] = Out(worker, self._ctx.now())
                    self._ctx.count("es/repeated_units")
                    return late
            await self._until_moved()

    def _overdue(self) -> int | None:
        """The unit that has been out for too long, if any: its worker may be dead, or slow beyond measure."""
        oldest = min(self._out, key=lambda unit: self._out[unit].since, default=None)
        return oldest if oldest is not None and self._patience() <= 0.0 else None

    def _patience(self) -> float:
        """Seconds until the unit that has been out longest is overdue."""
        slowest = max([*self._took, self._slowest])
        if not self._out or not self._plan.repeat_after or not slowest:
            return math.inf
        since = min(out.since for out in self._out.values())
        return since + self._plan.repeat_after * slowest - self._ctx.now()

    async def _until_moved(self) -> None:
        patience = self._patience()
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait({moved}, timeout=patience if math.isfinite(patience) else None)
        finally:
            moved.cancel()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # -- taking back ------------------------------------------------------------------------------

    async def _take(self, result: Result) -> bool:
        """Keep a result, unless it is late, a repeat, or of other parameters; False in the last case."""
        if result.generation != self._evolution.generation:
            self._ctx.count("dropped/late_results")
            return True
        if result.unit in self._results:
            self._ctx.count("dropped/repeated_results")
            return True
        if result.digest is not None and result.digest != self._digest:
            self._ctx.count("dropped/diverged_results")
            if result.unit in self._out:
                self._release([result.unit])
            return False
        if result.unit in self._out:
            self._took.append(self._ctx.now() - self._out.pop(result.unit).since)
        elif result.unit in self._free:
            self._free.remove(result.unit)  # it was given up for lost
        self._results[result.unit] = result
        if len(self._results) == self._plan.units:
            await self._update()
        return True

    async def _update(self) -> None:
        self._updating = True
        try:
            async with self._ctx.work("apply", items=self._algorithm.directions * len(self._policy.values)):
                self._advance()
            if self._spending.last(self._steps):
                await self._ctx.sleep(_LAST_SECONDS)
        finally:
            # Also if the worker that brought the last result dies meanwhile.
            self._updating = False
            self._wake()

    def _advance(self) -> None:
        """The next generation, from the results in the order of their units."""
        ctx, items = self._ctx, self._algorithm.items
        results = [self._results[unit] for unit in range(self._plan.units)]
        returns = np.concatenate([result.returns for result in results])
        lengths = np.concatenate([result.lengths for result in results])
        fitness = returns - np.float32(self._algorithm.survival_bonus) * lengths.astype(np.float32)
        told = Generation(self._evolution.generation, fitness, self._spending.share(self._steps))
        for name, value in self._evolution.apply(told).items():
            ctx.record(name, value)
        check_finite({"parameters": self._evolution.values}, f"{ctx.identity.role} {ctx.identity.index}")
        if self._moments is not None:
            self._moments = merge([self._moments, *(result.seen for result in results if result.seen is not None)])
        taken = sum(result.taken for result in results)
        self._steps += taken
        if items.cap_factor:
            self._cap = min(items.longest_episode, math.ceil(items.cap_factor * float(lengths.mean(dtype=np.float64))))
        self._history.append(told)
        if self._took:
            self._slowest = max(self._took)
        self._begin()
        ctx.count("updates")
        ctx.count(_SPENT, taken)
        ctx.record("es/episode_cap", self._cap)
        ctx.record("es/best_return", float(returns.max()))
        for reward, length in zip(returns.ravel().tolist(), lengths.ravel().tolist(), strict=True):
            ctx.episode(Episode(reward, length))

    def _begin(self) -> None:
        self._results.clear()
        self._out.clear()
        self._took.clear()
        self._free = deque(range(self._plan.units))
        self._digest = self._evolution.digest()
        self._snapshot = None

    # -- what a worker must be told ---------------------------------------------------------------

    def _news(self, have: int | None) -> Snapshot | tuple[Generation, ...]:
        """What leads from generation `have` to the present one."""
        behind = self._evolution.generation - have if have is not None else -1
        if behind == 0:
            return ()
        if self._plan.protocol == "seeds" and 0 < behind <= len(self._history):
            return tuple(self._history)[-behind:]
        if self._plan.protocol == "seeds" and have is not None:
            self._ctx.count("dropped/outdated_copies")
        return self._snap()

    def _snap(self) -> Snapshot:
        """A copy, the same one for all who ask in a generation."""
        if self._snapshot is None:
            evolution = self._evolution
            rebuilds = self._plan.protocol == "seeds"
            slots = {name: slot.copy() for name, slot in evolution.slots.items()} if rebuilds else {}
            self._snapshot = Snapshot(evolution.generation, evolution.values.copy(), slots, self._table.place)
        return self._snapshot

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Parameters, the optimiser's averages, statistics, and the results that the present generation has so far."""
        arrays = {f"weights/{name}": value for name, value in self._policy.weights(self._moments).items()}
        arrays |= {f"optimizer/{name}": slot.copy() for name, slot in self._evolution.slots.items()}
        values: dict[str, Any] = {
            "generation": self._evolution.generation,
            "steps": self._steps,
            "seconds": self._spending.seconds,
            "cap": self._cap,
            "slowest": self._slowest,
            "units": sorted(self._results),
            "taken": [self._results[unit].taken for unit in sorted(self._results)],
            "seen": [seen.number for seen in self._seen()],
        }
        if self._moments is not None:
            arrays |= {"moments/mean": self._moments.mean, "moments/var": self._moments.var}
            values["rows"] = self._moments.number
        if self._results:
            results = [self._results[unit] for unit in values["units"]]
            arrays["returns"] = np.stack([result.returns for result in results])
            arrays["lengths"] = np.stack([result.lengths for result in results])
            if self._seen():
                arrays["seen/mean"] = np.stack([seen.mean for seen in self._seen()])
                arrays["seen/var"] = np.stack([seen.var for seen in self._seen()])
        return arrays, values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        weights = {name.removeprefix("weights/"): a for name, a in arrays.items() if name.startswith("weights/")}
        self._policy.load(weights)
        slots = {name: arrays[f"optimizer/{name}"] for name in self._evolution.slots}
        self._evolution.adopt(values["generation"], self._policy.values, slots)
        self._steps, self._cap, self._slowest = values["steps"], values["cap"], values["slowest"]
        self._spending.seconds = values.get("seconds", 0.0)  # runs of before had none
        if self._moments is not None:
            self._moments = Moments(values["rows"], arrays["moments/mean"], arrays["moments/var"])
        self._begin()
        for row, unit in enumerate(values["units"]):
            seen = None
            if values["seen"]:
                seen = Moments(values["seen"][row], arrays["seen/mean"][row], arrays["seen/var"][row])
            self._free.remove(unit)
            lengths = arrays["lengths"][row]
            taken = values["taken"][row] if "taken" in values else int(lengths.sum())  # runs of before had none
            self._results[unit] = Result(self._evolution.generation, unit, arrays["returns"][row], lengths, taken, seen)

    def _seen(self) -> list[Moments]:
        found = [self._results[unit].seen for unit in sorted(self._results)]
        return [seen for seen in found if seen is not None]
