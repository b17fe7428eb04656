"""Coordinator: assigns the episodes of a generation to workers, and computes the next generation."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from thespis.algorithms.updates.evolution import Evolution, Generation
from thespis.core.budget import Budget, Progress
from thespis.core.context import Context
from thespis.core.finite_weights import check_finite_weights
from thespis.core.payloads import BlockAddress
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Episode, Version, VersionedWeights
from thespis.exchange.noise import NoiseTable
from thespis.networks.running_moments import Moments, merge

if TYPE_CHECKING:
    from thespis.algorithms.es import ES

_HISTORY = 64
"""Largest number of generations that a worker can catch up from returns only."""
_LAST_SECONDS = 0.1
"""Delay after the last generation, long enough for the runtime to learn of it."""
_SPENT = "es/steps_of_generations"
"""Steps of finished generations. Only these use up the budget, so a run ends with a generation."""


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """A worker's request for a unit. `generation`: that of its parameters; None if it has none yet."""

    worker: int
    incarnation: int
    generation: int | None


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The episodes of one unit. `returns`: float32 `[pairs, 2]`. `lengths`: int32 `[pairs, 2]`, in steps.

    `taken`: all steps taken for these episodes; a native vector also steps environments of finished members. `seen`:
    moments of all observations, if they are normalised. `digest`: of the unperturbed parameters, every `check_every`
    generations.
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
    """A generation's parameters and optimiser state. `noise`: the address of the noise table."""

    generation: int
    values: Array
    slots: dict[str, Array]
    noise: BlockAddress


@dataclass(frozen=True, slots=True)
class UnitOrder:
    """One unit of work. `news`: how to compute the unit's parameters from the worker's.

    `cap`: steps after which an episode is cut. `moments`: normalise observations by these.
    """

    unit: int
    cap: int
    moments: Moments | None
    news: Snapshot | tuple[Generation, ...]


class OutstandingUnit(NamedTuple):
    """An assigned unit: its worker, and the time of assignment."""

    worker: int
    since: float


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The units of a generation, and the protocol by which workers get its parameters.

    `units`: per generation. `protocol`: seeds or broadcast. `check_every`: generations between two comparisons of
    digests. `repeat_after`: assign a unit to a second worker after this many times the slowest unit's time; 0 for
    never.
    """

    units: int
    pairs_per_unit: int
    protocol: str
    check_every: int
    repeat_after: float


class PolicyWeights(Protocol):
    """The policy whose parameters evolve."""

    values: Array

    def weights(self, moments: Moments | None) -> dict[str, Array]:
        """The weights of the policy, with these observation moments."""

    def load(self, weights: dict[str, Array]) -> None:
        """Load weights."""


class Coordinator:
    """Workers request units and return results. A generation ends when all its units have results.

    A unit's episodes depend on the seed, the generation and the unit's number, never on the worker. So neither the
    number of workers nor a slow or dead one changes the parameters, and a second worker may safely repeat a unit: the
    later result is dropped.
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
        policy: PolicyWeights,
        table: NoiseTable,
        moments: Moments | None,
    ) -> None:
        self._ctx, self._algorithm, self._plan = ctx, algorithm, plan
        self._policy, self._table, self._moments = policy, table, moments
        self._evolution = Evolution(algorithm, ctx.identity.run_seed, policy.values, table.values)
        self._steps = 0
        self._progress = Progress(budget, ctx.now)
        self._cap = algorithm.items.longest_episode
        self._results: dict[int, UnitResult] = {}
        self._free = deque(range(plan.units))
        self._out: dict[int, OutstandingUnit] = {}
        self._incarnations: dict[int, int] = {}
        self._history: deque[Generation] = deque(maxlen=_HISTORY)
        self._digest = self._evolution.digest()
        self._slowest = 0.0
        """Seconds that the slowest unit of the last generation took."""
        self._took: list[float] = []
        self._snapshot: Snapshot | None = None
        self._weights: VersionedWeights | None = None
        self._updating = False
        self._moved = asyncio.Event()

    @property
    def version(self) -> Version:
        """The epoch and the generation."""
        return Version(self._ctx.identity.epoch, self._evolution.generation)

    # -- edges ------------------------------------------------------------------------------------

    async def order(self, request: UnitRequest, result: UnitResult | None) -> UnitOrder:
        """Accept the last unit's result and return the next unit; waits until there is one."""
        self._free_earlier_units(request)
        outdated = result is not None and not await self._take(result)
        unit = await self._next(request.worker)
        news = self._snap() if outdated else self._news(request.generation)
        return UnitOrder(unit, self._cap, self._moments, news)

    async def pull(self, newer_than: Version | None) -> VersionedWeights | None:
        """The weights of the unperturbed policy, or None if the caller has this version."""
        if newer_than is not None and self.version <= newer_than:
            return None
        if self._weights is None or self._weights.version != self.version:
            self._weights = VersionedWeights(self.version, self._policy.weights(self._moments))
        return self._weights

    async def close(self) -> None:
        """Release the noise table."""
        self._table.close()

    # -- assigning units --------------------------------------------------------------------------

    def _free_earlier_units(self, request: UnitRequest) -> None:
        """Free the units of a worker's earlier incarnation."""
        if self._incarnations.get(request.worker, request.incarnation) != request.incarnation:
            self._release([unit for unit, out in self._out.items() if out.worker == request.worker])
        self._incarnations[request.worker] = request.incarnation

    def _release(self, units: list[int]) -> None:
        for unit in units:
            del self._out[unit]
            self._free.append(unit)
        self._wake()

    async def _next(self, worker: int) -> int:
        while True:
            if not self._updating and not self._progress.exhausted(self._steps):
                if self._free:
                    unit = self._free.popleft()
                    self._out[unit] = OutstandingUnit(worker, self._ctx.now())
                    return unit
                late = self._overdue()
                if late is not None:
                    self._out[late] = OutstandingUnit(worker, self._ctx.now())
                    self._ctx.count("es/repeated_units")
                    return late
            await self._until_moved()

    def _overdue(self) -> int | None:
        """The unit that has been out for too long, if any: its worker may be dead or slow."""
        oldest = min(self._out, key=lambda unit: self._out[unit].since, default=None)
        return oldest if oldest is not None and self._patience() <= 0.0 else None

    def _patience(self) -> float:
        """Seconds until the oldest outstanding unit is overdue."""
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

    # -- results ----------------------------------------------------------------------------------

    async def _take(self, result: UnitResult) -> bool:
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
            self._free.remove(result.unit)  # its worker was restarted
        self._results[result.unit] = result
        if len(self._results) == self._plan.units:
            await self._update()
        return True

    async def _update(self) -> None:
        self._updating = True
        try:
            async with self._ctx.work("apply", items=self._algorithm.directions * len(self._policy.values)):
                self._advance()
            if self._progress.exhausted(self._steps):
                await self._ctx.sleep(_LAST_SECONDS)
        finally:
            # Also if the worker that sent the last result dies meanwhile.
            self._updating = False
            self._wake()

    def _advance(self) -> None:
        """Compute the next generation from the results, in the order of their units."""
        ctx, items = self._ctx, self._algorithm.items
        results = [self._results[unit] for unit in range(self._plan.units)]
        returns = np.concatenate([result.returns for result in results])
        lengths = np.concatenate([result.lengths for result in results])
        fitness = returns - np.float32(self._algorithm.survival_bonus) * lengths.astype(np.float32)
        generation = Generation(self._evolution.generation, fitness, self._progress.fraction(self._steps))
        for name, value in self._evolution.apply(generation).items():
            ctx.record(name, value)
        check_finite_weights({"parameters": self._evolution.values}, f"{ctx.identity.role} {ctx.identity.index}")
        if self._moments is not None:
            self._moments = merge([self._moments, *(result.seen for result in results if result.seen is not None)])
        taken = sum(result.taken for result in results)
        self._steps += taken
        if items.cap_factor:
            self._cap = min(items.longest_episode, math.ceil(items.cap_factor * float(lengths.mean(dtype=np.float64))))
        self._history.append(generation)
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

    # -- updates for workers ----------------------------------------------------------------------

    def _news(self, have: int | None) -> Snapshot | tuple[Generation, ...]:
        """The data that takes a worker from generation `have` to the current one."""
        behind = self._evolution.generation - have if have is not None else -1
        if behind == 0:
            return ()
        if self._plan.protocol == "seeds" and 0 < behind <= len(self._history):
            return tuple(self._history)[-behind:]
        if self._plan.protocol == "seeds" and have is not None:
            self._ctx.count("dropped/outdated_copies")
        return self._snap()

    def _snap(self) -> Snapshot:
        """A copy of the current parameters, shared by all callers of one generation."""
        if self._snapshot is None:
            evolution = self._evolution
            rebuilds = self._plan.protocol == "seeds"
            slots = {name: slot.copy() for name, slot in evolution.slots.items()} if rebuilds else {}
            self._snapshot = Snapshot(evolution.generation, evolution.values.copy(), slots, self._table.address)
        return self._snapshot

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Parameters, optimiser state, moments, and the current generation's results so far."""
        arrays = {f"weights/{name}": value for name, value in self._policy.weights(self._moments).items()}
        arrays |= {f"optimizer/{name}": slot.copy() for name, slot in self._evolution.slots.items()}
        values: dict[str, Any] = {
            "generation": self._evolution.generation,
            "steps": self._steps,
            "seconds": self._progress.seconds,
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
        """Load what `state` returned."""
        weights = {name.removeprefix("weights/"): a for name, a in arrays.items() if name.startswith("weights/")}
        self._policy.load(weights)
        slots = {name: arrays[f"optimizer/{name}"] for name in self._evolution.slots}
        self._evolution.adopt(values["generation"], self._policy.values, slots)
        self._steps, self._cap, self._slowest = values["steps"], values["cap"], values["slowest"]
        self._progress.seconds = values.get("seconds", 0.0)  # older checkpoints have none
        if self._moments is not None:
            self._moments = Moments(values["rows"], arrays["moments/mean"], arrays["moments/var"])
        self._begin()
        for row, unit in enumerate(values["units"]):
            seen = None
            if values["seen"]:
                seen = Moments(values["seen"][row], arrays["seen/mean"][row], arrays["seen/var"][row])
            self._free.remove(unit)
            lengths = arrays["lengths"][row]
            taken = values["taken"][row] if "taken" in values else int(lengths.sum())  # older checkpoints have none
            self._results[unit] = UnitResult(
                self._evolution.generation, unit, arrays["returns"][row], lengths, taken, seen
            )

    def _seen(self) -> list[Moments]:
        found = [self._results[unit].seen for unit in sorted(self._results)]
        return [seen for seen in found if seen is not None]
