"""LabelledSource: batches that Bellman updaters labelled, for the trainers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thespis.core.context import Context
from thespis.core.edges import SampleLabelled
from thespis.core.types import Array, Labelled, Version, lags


class LabelledSource:
    """Prefetches labelled batches: the next sample is requested before the trainer starts on this one."""

    def __init__(
        self, ctx: Context, sample: SampleLabelled, version: Callable[[], Version], shards: int, trainers: int
    ) -> None:
        """`version`: the trainer's, of all `shards` together. `trainers`: each counts its share of the steps."""
        self._ctx, self._sample, self._version = ctx, sample, version
        self._shards, self._trainers = shards, trainers
        self._next: asyncio.Future[list[Labelled]] | None = None

    async def next(self) -> Labelled:
        """Wait for the next labelled batch and record the age of its labels."""
        if self._next is None:
            self._next = self._ctx.ahead(self._sample(1))
        (batch,) = await self._ctx.wait(self._sample.name, self._next)
        self._next = self._ctx.ahead(self._sample(1))
        # Send the request before the trainer's work blocks this process.
        await asyncio.sleep(0)
        batch.env_steps_at_sample //= self._trainers
        age = lags(batch.versions, self._version()) / self._shards
        self._ctx.record("label/age", float(age.mean()), maximum=float(age.max()))
        return batch

    async def done(self, batch: Labelled, priorities: Array | None) -> None:
        """Do nothing: a label is used once."""

    async def close(self) -> None:
        """Cancel the pending sample."""
        if self._next is not None:
            self._next.cancel()
