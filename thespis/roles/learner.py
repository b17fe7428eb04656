"""Learner: source → gradients → exchange → publish."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from thespis.budget import Budget, Spending
from thespis.errors import NonFiniteLoss, OutlierLoss
from thespis.runtime.context import Context
from thespis.types import Array, Version, Versioned, lags

if TYPE_CHECKING:
    from torch import Tensor

_METRICS_SECONDS = 0.2
"""Loss statistics cost a few percent of an update, so they are computed for some batches only."""
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

    async def settle(self, batch: Any) -> None:
        """The update is done with a batch it took."""

    async def close(self) -> None: ...


class Update(Protocol):
    """The algorithm and its network: batches to gradients. It never applies them."""

    def gradients(self, batch: Any, want_metrics: bool) -> tuple[list[Tensor], dict[str, float]]: ...

    def observe(self, batch: Any) -> None: ...

    def weights(self) -> dict[str, Array]: ...

    def load(self, weights: dict[str, Array]) -> None: ...

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...


class Exchange(Protocol):
    """What becomes of gradients: applied here, averaged with others, or sent to a parameter server.

    `begin` comes before the first batch, so that all who share parameters start from the same. `apply` is told the
    share of the run that is done, as far as this learner knows, and the environment steps the gradients stand for.
    """

    async def begin(self) -> None: ...

    async def apply(self, gradients: list[Tensor], progress: float, steps: int) -> bool: ...

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...


Divide = Callable[[Any], Iterable[tuple[int, Any]]]
"""Parts of a batch, each with the number of rows in it."""


class Publish(Protocol):
    name: str

    def __call__(self, weights: Versioned, /) -> Awaitable[None]: ...


class Learner:
    """Counts updates; the count is half of every version it publishes, the epoch of this life is the other.

    One that publishes nothing works for whoever holds the weights: that one counts updates and lag, and saves them.
    """

    PUBLISHES: ClassVar = True  # so each life of it gets an epoch of its own
    LOST: ClassVar = "sampled_batches"  # what goes with a life of it, counted when it is restarted

    def __init__(
        self,
        ctx: Context,
        source: Source,
        update: Update,
        exchange: Exchange,
        publish: Publish | None,
        budget: Budget,
        publish_every: int = 1,
        divide: Divide | None = None,
    ) -> None:
        """`publish_every`: updates between the weights that others get to see.

        `divide`: the parts of a batch to make one gradient step of each, all of them one update; without it a batch is
        one part. It is asked for the next part after the step of the one before.
        """
        self._ctx, self._source, self._update, self._exchange, self._publish = ctx, source, update, exchange, publish
        self._spending, self._publish_every, self._divide = Spending(budget, ctx.now), publish_every, divide
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
            await self.learn(batch)
            await self._source.settle(batch)
            if self._updates % self._publish_every == 0:
                await self._share()

    async def learn(self, batch: Batch) -> None:
        """One update from one batch. A batch whose loss is not finite, or an outlier, is dropped and counted."""
        ctx = self._ctx
        behind = lags(batch.versions[batch.valid], self.version)
        steps = int(behind.size)
        if steps and self._publish is not None:
            ctx.lag(behind)
        after = batch.steps_after(self._steps)
        try:
            sound = await self._descend(batch, after - self._steps)
        except OutlierLoss:
            ctx.count("dropped/outlier_batches")
            return
        self._steps = after
        ctx.count("learner/steps", steps)
        if sound:
            self._spoiled = 0
            self._update.observe(batch)
            if self._publish is not None:
                ctx.count("updates")
        else:
            self._spoil()
        if sound or self._divide is not None:
            # Of several steps some may have been made before the one that was not finite, so that is a version too.
            self._updates += 1

    async def _descend(self, batch: Batch, steps: int) -> bool:
        """The gradient steps of one update; False if one was not finite, and so not made, nor those after it.

        `steps`: the environment steps in the batch; the first part stands for all of them.
        """
        ctx, progress = self._ctx, self._spending.share(self._steps)
        wanted = ctx.now() - self._measured >= _METRICS_SECONDS
        for rows, part in [(batch.rewards.size, batch)] if self._divide is None else self._divide(batch):
            try:
                gradients, metrics = await ctx.aside("learn", rows, self._update.gradients, part, wanted)
            except NonFiniteLoss:
                return False
            if not await self._exchange.apply(gradients, progress, steps):
                return False
            steps = 0
            for name, value in metrics.items():
                ctx.record(name, value)
        if wanted:
            self._measured = ctx.now()
        return True

    async def close(self) -> None:
        await self._source.close()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything a later life needs to go on as if nothing had happened."""
        weights = self._update.weights() if self._publish is not None else {}
        arrays = {f"weights/{name}": value for name, value in weights.items()}
        arrays |= {f"exchange/{name}": value for name, value in self._exchange.state().items()}
        arrays |= {f"update/{name}": value for name, value in self._update.state().items()}
        return arrays, {"updates": self._updates, "steps": self._steps, "seconds": self._spending.seconds}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Array]] = {"weights": {}, "exchange": {}, "update": {}}
        for name, value in arrays.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        if parts["weights"]:
            self._update.load(parts["weights"])
        self._exchange.restore(parts["exchange"])
        self._update.restore(parts["update"])
        self._updates, self._steps = values["updates"], values["steps"]
        self._spending.seconds = values.get("seconds", 0.0)  # runs of before had none

    async def _share(self) -> None:
        """Publish without waiting for it, but never more than one version ahead."""
        if self._publish is None:
            return
        if self._published is not None:
            await self._ctx.wait(self._publish.name, self._published)
        self._published = self._ctx.ahead(self._publish(Versioned(self.version, self._update.weights())))

    def _spoil(self) -> None:
        self._ctx.count("dropped/non_finite_batches")
        self._spoiled += 1
        if self._spoiled >= _PATIENCE:
            raise NonFiniteLoss(f"the loss of {_PATIENCE} batches in a row was not finite; lower the learning rate")
