"""Learner: source → gradients → exchange → publish."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from thespis.algorithms.updates.update import Gradients, Update
from thespis.core.context import Context
from thespis.core.edges import Publish
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.finite import check_finite
from thespis.core.service import RoleDescription
from thespis.core.types import Array, Version, Versioned, lags

if TYPE_CHECKING:
    from torch import Tensor

_METRICS_SECONDS = 0.2
"""Loss statistics cost a few percent of an update, so they are computed for some batches only. So are checks of the
weights."""
_PATIENCE = 100
"""Batches in a row whose loss may be non-finite before the learner gives up."""


class Batch(Protocol):
    """What the learner itself reads of a batch, whatever else an update wants of it."""

    @property
    def versions(self) -> Array: ...

    @property
    def valid(self) -> Array: ...

    @property
    def rewards(self) -> Array: ...

    def steps_after(self, before: int) -> int: ...


class Source(Protocol):
    async def take(self) -> Batch: ...

    async def done(self, batch: Any, priorities: Array | None) -> None:
        """The learner is done with a batch it took. `priorities`: float32, of its items, if the update found any."""

    async def close(self) -> None: ...


class Exchange(Protocol):
    """What becomes of gradients: applied here, averaged with others, or sent to a parameter server.

    `begin` comes before the first batch, so that all who share parameters start from the same. Each batch is one call
    of `begin_batch`, before its gradients are computed, one call of `apply` per gradient step, and `end_batch`.
    """

    async def begin(self) -> None: ...

    def begin_batch(self, steps: int) -> None:
        """A batch of so many environment steps comes next. Schedules follow the steps of all learners together."""

    def end_batch(self) -> None:
        """The batch is learned from, so its steps belong to what a checkpoint holds."""

    async def apply(self, gradients: list[Tensor] | None) -> bool:
        """Whether the parameters changed, which makes a version.

        None: this learner's gradients must not be applied. It takes part all the same, because others may wait for
        its vote.
        """

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...


class _Outcome(NamedTuple):
    """What became of a batch: whether it changed the parameters, and what the update found in it."""

    applied: bool
    outlier: bool = False
    priorities: Array | None = None


class Learner:
    """Counts updates; the count is half of every version it publishes, the epoch of this life is the other.

    One that publishes nothing works for whoever holds the weights: that one counts updates and lag, and saves them.
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
        """`publish_every`: updates between the weights that others get to see."""
        self._ctx, self._source, self._update, self._exchange, self._publish = ctx, source, update, exchange, publish
        self._publish_every = publish_every
        self._updates = 0
        self._steps = 0
        self._spoiled = 0
        self._measured = ctx.now()
        self._published: asyncio.Future[None] | None = None

    @property
    def version(self) -> Version:
        return Version(self._ctx.identity.epoch, self._updates)

    async def run(self) -> None:
        await self._exchange.begin()
        await self._share()
        while True:
            batch = await self._source.take()
            priorities = await self.learn(batch)
            await self._source.done(batch, priorities)
            if self._updates % self._publish_every == 0:
                await self._share()

    async def learn(self, batch: Batch) -> Array | None:
        """One update from one batch; returns the new priorities of its items, if the update found any.

        A batch whose loss is not finite, or an outlier, is dropped and counted.
        """
        ctx = self._ctx
        behind = lags(batch.versions[batch.valid], self.version)
        steps = int(behind.size)
        if steps and self._publish is not None:
            ctx.lag(behind)
        after = batch.steps_after(self._steps)
        self._exchange.begin_batch(after - self._steps)
        outcome = await self._descend(batch)
        self._exchange.end_batch()
        self._steps = after
        if not outcome.outlier:
            ctx.count("learner/steps", steps)
        if outcome.applied:
            self._spoiled = 0
            self._update.observe(batch)
            if self._publish is not None:
                ctx.count("updates")
        elif outcome.outlier:
            ctx.count("dropped/outlier_batches")
        else:
            self._spoil()
        if outcome.applied or self._update.minibatches is not None:
            # Of several steps some may have been made before the one that was not finite, so that is a version too.
            self._updates += 1
        return outcome.priorities

    async def _descend(self, batch: Batch) -> _Outcome:
        """The gradient steps of one update. The first step that is not applied is the last."""
        ctx = self._ctx
        wanted = ctx.now() - self._measured >= _METRICS_SECONDS
        outcome = _Outcome(applied=True)
        minibatches = self._update.minibatches
        for rows, part in [(batch.rewards.size, batch)] if minibatches is None else minibatches(batch):
            try:
                found = await ctx.aside("learn", rows, self._update.gradients, part, wanted)
                gradients = None if found.outlier else found.values
            except NonFiniteLoss:
                found, gradients = Gradients([], {}), None
            applied = await self._exchange.apply(gradients)
            outcome = _Outcome(applied, found.outlier, found.priorities)
            if not applied:
                return outcome
            for name, value in found.metrics.items():
                ctx.record(name, value)
        if wanted:
            self._measured = ctx.now()
            self._check_weights()
        return outcome

    async def close(self) -> None:
        await self._source.close()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything a later life needs to go on as if nothing had happened."""
        weights = self._update.weights() if self._publish is not None else {}
        arrays = {f"weights/{name}": value for name, value in weights.items()}
        arrays |= {f"exchange/{name}": value for name, value in self._exchange.state().items()}
        arrays |= {f"update/{name}": value for name, value in self._update.state().items()}
        return arrays, {"updates": self._updates, "steps": self._steps, "non_finite": self._spoiled}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Array]] = {"weights": {}, "exchange": {}, "update": {}}
        for name, value in arrays.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        if parts["weights"]:
            self._update.load(parts["weights"])
        counted = {name: np.array(values[name]) for name in ("steps", "seconds") if name in values}
        self._exchange.restore(counted | parts["exchange"])  # runs of before counted both here
        self._update.restore(parts["update"])
        self._updates, self._steps = values["updates"], values["steps"]
        self._spoiled = values.get("non_finite", 0)  # runs of before did not count on

    async def _share(self) -> None:
        """Publish without waiting for it, but never more than one version ahead."""
        if self._publish is None:
            return
        if self._published is not None:
            await self._ctx.wait(self._publish.name, self._published)
        self._published = self._ctx.ahead(self._publish(Versioned(self.version, self._update.weights())))

    @property
    def _name(self) -> str:
        return f"{self._ctx.identity.role} {self._ctx.identity.index}"

    def _check_weights(self) -> None:
        check_finite(self._update.weights(), self._name)

    def _spoil(self) -> None:
        self._check_weights()
        self._ctx.count("dropped/non_finite_batches")
        self._spoiled += 1
        if self._spoiled >= _PATIENCE:
            raise ThespisError(
                f"{self._name}: the loss of {_PATIENCE} batches in a row was not finite; lower the learning rate, "
                "or scale the rewards down"
            )
