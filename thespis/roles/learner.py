"""Learner: source → gradients → exchange → publish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from thespis.algorithms.updates.update import Gradients, SharedUpdate, Update
from thespis.core.context import Context
from thespis.core.edges import Publish
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.finite_weights import check_finite_weights
from thespis.core.payloads import RoleState
from thespis.core.service import RoleDescription
from thespis.core.types import Array, Version, VersionedWeights, lags
from thespis.exchange.protocol import Exchange, LeftGroup

_T = TypeVar("_T")
_METRICS_SECONDS = 0.2
"""Seconds between loss statistics and checks of the weights. Both cost a few percent of an update."""
_PATIENCE = 100
"""Consecutive batches with a non-finite loss after which the learner fails."""


class Batch(Protocol):
    """The fields of a batch that the learner itself reads; an update reads more."""

    @property
    def versions(self) -> Array:
        """Packed version that chose each action."""

    @property
    def valid(self) -> Array:
        """Whether each step is a step of an episode: bool."""

    @property
    def rewards(self) -> Array:
        """The rewards as stored."""

    def steps_after(self, before: int) -> int:
        """Environment steps learned from once this batch is done, given the steps before it."""


class Source(Protocol):
    """Provides a learner's batches."""

    async def next(self) -> Batch:
        """Wait for the next batch."""

    async def done(self, batch: Any, priorities: Array | None) -> None:
        """Mark a batch as learned from. `priorities`: float32, of its items, if the update computed any."""

    async def close(self) -> None:
        """Cancel all pending calls."""


class _Outcome(NamedTuple):
    """Result of one update: whether the parameters changed, and the update's findings about its batch.

    `vetoed`: another learner had no gradients to apply.
    """

    applied: bool
    outlier: bool = False
    priorities: Array | None = None
    vetoed: bool = False


class Learner:
    """Computes updates and publishes weights. A version is the incarnation's epoch and the update count.

    Without `publish` a parameter server owns the weights and counts updates and lag.
    """

    description: ClassVar = RoleDescription(publishes=True, lost="sampled_batches")

    def __init__(
        self,
        ctx: Context,
        source: Source,
        update: Update,
        exchange: Exchange,
        publish: Publish | None,
        publish_every: int = 1,
    ) -> None:
        """`publish_every`: updates between two published versions."""
        self._ctx, self._source, self._update, self._exchange, self._publish = ctx, source, update, exchange, publish
        self._publish_every = publish_every
        self._shared_update = cast(SharedUpdate, update) if exchange.shared else None
        self._updates = 0
        self._steps = 0
        self._non_finite = 0
        self._partly_applied = False
        self._measured = ctx.now()
        self._published: asyncio.Future[None] | None = None

    @property
    def version(self) -> Version:
        """Version of the current weights."""
        return Version(self._ctx.identity.epoch, self._updates)

    @property
    def updates(self) -> int:
        """Number of updates of the weights."""
        return self._updates

    async def run(self) -> None:
        """Learn from batches until the run ends."""
        await self._enter()
        while True:
            batch = await self._source.next()
            if await self._learn_in_step(batch) and self._updates % self._publish_every == 0:
                await self._share()

    async def _enter(self) -> None:
        await self._exchange.begin(self)
        await self._share()

    async def _learn_in_step(self, batch: Batch) -> bool:
        """Learn from a batch; False if it is outdated, because the other learners made an update without this one.

        If they did not, the batch is used again: actors that wait for the next version would insert no other.
        """
        version = self.version
        while self.version == version:
            try:
                priorities = await self.learn(batch)
            except LeftGroup:
                await self._enter()
            else:
                await self._source.done(batch, priorities)
                return True
        self._ctx.count("dropped/outdated_batches")
        return False

    async def learn(self, batch: Batch) -> Array | None:
        """Make one update from one batch; returns the new priorities of its items, if the update computed any.

        A batch with a non-finite loss, or an outlier, is dropped and counted.
        """
        ctx = self._ctx
        behind = lags(batch.versions[batch.valid], self.version)
        steps = int(behind.size)
        if steps and self._publish is not None:
            ctx.lag(behind)
        after = batch.steps_after(self._steps)
        self._exchange.begin_batch(after - self._steps)
        try:
            outcome = await self._descend(batch)
        except LeftGroup:
            self._updates += self._partly_applied  # a part of the minibatches makes a new version too
            raise
        self._steps = after
        if not outcome.outlier:
            ctx.count("learner/steps", steps)
        if outcome.applied:
            self._non_finite = 0
            self._update.observe(batch)
            if self._publish is not None and self._exchange.leads:
                ctx.count("updates")
        elif outcome.outlier:
            ctx.count("dropped/outlier_batches")
        else:
            self._drop_non_finite("vetoed" if outcome.vetoed else "non_finite")
        if outcome.applied or self._update.minibatches is not None:
            # Minibatches before the non-finite one may have changed the parameters, so this is a new version too.
            self._updates += 1
        await self._exchange.end_batch()
        return outcome.priorities

    async def _descend(self, batch: Batch) -> _Outcome:
        """Make the gradient steps of one update; stop after the first step that is not applied."""
        ctx = self._ctx
        wanted = ctx.now() - self._measured >= _METRICS_SECONDS
        outcome, self._partly_applied = _Outcome(applied=True), False
        minibatches, shared = self._update.minibatches, self._shared_update
        if shared is not None:
            await self._merge_statistics(shared, batch)
        parts = iter([(batch.rewards.size, batch)] if minibatches is None else minibatches(batch))
        while (found_part := await self._take(parts)) is not None:
            rows, part = found_part
            if shared is not None and part is not batch:
                await self._merge_statistics(shared, part)
            try:
                found = await self._compute("learn", rows, self._update.gradients, part, wanted)
                gradients = None if found.outlier else found.values
            except NonFiniteLoss:
                found, gradients = Gradients([], {}), None
            applied = await self._exchange.apply(gradients, 1 if shared is None else shared.rows(part))
            vetoed = shared is not None and gradients is not None
            outcome = _Outcome(applied, found.outlier, found.priorities, vetoed)
            if not applied:
                return outcome
            self._partly_applied = True
            for name, value in found.metrics.items():
                ctx.record(name, value)
        if wanted:
            self._measured = ctx.now()
            self._check_weights()
        return outcome

    async def _take(self, parts: Iterator[tuple[int, Any]]) -> tuple[int, Any] | None:
        """The next part of a batch, which may need a forward pass; None at the end."""
        return next(parts, None)

    async def _compute(self, kind: str, items: int, function: Callable[..., _T], *args: Any) -> _T:
        """Run a function that uses the network."""
        return await self._ctx.run_in_thread(kind, items, function, *args)

    async def _weights(self) -> dict[str, Array]:
        """The whole weights, to publish."""
        return self._update.weights()

    async def _merge_statistics(self, update: SharedUpdate, part: Any) -> None:
        """Let the update see the statistics of the corresponding parts of all equal learners."""
        statistics = update.statistics(part)
        if statistics.size:
            update.merge(part, await self._exchange.gather(statistics))

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Weights, optimiser and update state, and counts, from which a later incarnation continues."""
        weights = self._update.weights() if self._publish is not None else {}
        arrays = {f"weights/{name}": value for name, value in weights.items()}
        arrays |= {f"exchange/{name}": value for name, value in self._exchange.state().items()}
        arrays |= {f"update/{name}": value for name, value in self._update.state().items()}
        return arrays, {"updates": self._updates, "steps": self._steps, "non_finite": self._non_finite}

    async def snapshot(self) -> RoleState:
        """The same, for an equal learner."""
        return self.state()

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        parts: dict[str, dict[str, Array]] = {"weights": {}, "exchange": {}, "update": {}}
        for name, value in arrays.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        if parts["weights"]:
            self._update.load(parts["weights"])
        counted = {name: np.array(values[name]) for name in ("steps", "seconds") if name in values}
        self._exchange.restore(counted | parts["exchange"])  # older checkpoints keep both counts here
        self._update.restore(parts["update"])
        self._updates, self._steps = values["updates"], values["steps"]
        self._non_finite = values.get("non_finite", 0)  # older checkpoints have no such count

    async def _share(self) -> None:
        """Publish without waiting, but with at most one publish pending."""
        if self._publish is None:
            return
        if self._published is not None:
            await self._ctx.wait(self._publish.name, self._published)
        weights = await self._weights()
        self._published = self._ctx.ahead(self._publish(VersionedWeights(self.version, weights)))

    @property
    def _name(self) -> str:
        return f"{self._ctx.identity.role} {self._ctx.identity.index}"

    def _check_weights(self) -> None:
        check_finite_weights(self._update.weights(), self._name)

    def _drop_non_finite(self, why: str) -> None:
        self._check_weights()
        self._ctx.count(f"dropped/{why}_batches")
        self._non_finite += 1
        if self._non_finite >= _PATIENCE:
            raise ThespisError(
                f"{self._name}: the loss of {_PATIENCE} batches in a row was not finite; lower the learning rate, "
                "or scale the rewards down"
            )
