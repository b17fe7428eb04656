"""Batches that Bellman updaters have labelled, for whoever trains on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thespis.core.context import Context
from thespis.core.edges import SampleLabelled
from thespis.core.types import Array, Labelled, Version, lags


class Labels:
    """One batch after the other, the next one always asked for before the trainer starts on this one."""

    def __init__(
        self, ctx: Context, sample: SampleLabelled, version: Callable[[], Version], shards: int, trainers: int
    ) -> None:
        """`version`: the trainer's, of all `shards` together. `trainers`: each counts its share of the steps."""
        self._ctx, self._sample, self._version = ctx, sample, version
        self._shards, self._trainers = shards, trainers
        self._next: asyncio.Future[list[Labelled]] | None = None

    async def take(self) -> Labelled:
        if self._next is None:
            self._next = self._ctx.ahead(self._sample(1))
        (batch,) = await self._ctx.wait(self._sample.name, self._next)
        self._next = self._ctx.ahead(self._sample(1))
        # Let the request leave before the trainer's work blocks this process.
        await asyncio.sleep(0)
        batch.taken //= self._trainers
        age = lags(batch.versions, self._version()) / self._shards
        self._ctx.record("label/age", float(age.mean()), maximum=float(age.max()))
        return batch

    async def done(self, batch: Labelled, priorities: Array | None) -> None:
        """A label is used once."""

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
