"""Sources of a learner's batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Draw, InsertStream, Prioritise, Sample
from thespis.core.types import Array, ReplaySample, Stream, Unroll, Version
from thespis.experience.concat import concat_batches
from thespis.experience.writers import concatenate


class QueueSource:
    """Batches of concatenated unrolls. The next sample is requested before the learner starts on this batch.

    So the learner seldom waits for a message, at the cost of one update of lag.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int) -> None:
        self._ctx, self._sample, self._items = ctx, sample, items
        self._next: asyncio.Future[list[Unroll]] | None = None

    async def next(self) -> Unroll:
        """Wait for the next batch."""
        if self._next is None:
            self._next = self._ctx.ahead(self._sample(self._items))
        unrolls = await self._ctx.wait(self._sample.name, self._next)
        self._next = self._ctx.ahead(self._sample(self._items))
        # Send the request before the learner's work blocks this process.
        await asyncio.sleep(0)
        return concatenate(unrolls)

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """Do nothing: a queue has no priorities."""

    async def close(self) -> None:
        """Cancel the pending sample."""
        if self._next is not None:
            self._next.cancel()


class OnPolicyRounds:
    """Batches of unrolls of the learner's current version only; its actors wait for the next version.

    Every other unroll is late: its actor was too slow, or it was collected for an earlier incarnation of the learner.
    Late unrolls are dropped and counted, because one such row would make the batch off-policy.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int, version: Callable[[], Version]) -> None:
        self._ctx, self._sample, self._items, self._version = ctx, sample, items, version

    async def next(self) -> Unroll:
        """Wait for a batch of the current version."""
        version = self._version().packed()
        unrolls: list[Unroll] = []
        while len(unrolls) < self._items:
            sampled = await self._sample(self._items - len(unrolls))
            present = [unroll for unroll in sampled if (unroll.versions == version).all()]
            unrolls += present
            if len(present) < len(sampled):
                self._ctx.count("dropped/late_unrolls", len(sampled) - len(present))
        return concatenate(unrolls)

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """Do nothing: a queue has no priorities."""

    async def close(self) -> None:
        """Do nothing: no sample is prefetched."""


class ReplaySource:
    """Batches from a replay or its shards. One prefetched call per shard samples several batches.

    Every shard contributes an equal part of each batch, so item i of one of S shards is drawn with probability P(i) /
    S. The importance weights of all shards are therefore comparable, and are divided by the largest weight of the
    calls. With `prioritise`, priorities go back to the shards while the learner continues.
    """

    def __init__(
        self,
        ctx: Context,
        samples: Sequence[Draw],
        batch: int,
        batches: int,
        prioritise: Sequence[Prioritise] = (),
        sharers: int = 1,
        divide: bool = True,
    ) -> None:
        """`samples`, `prioritise`: the edges to each shard.

        `sharers`: number of learners that sample this replay; each counts its share of the steps. `divide`: divide
        importance weights by the largest of the draw; otherwise the update does.
        """
        self._ctx, self._samples, self._part, self._batches = ctx, samples, batch // len(samples), batches
        self._prioritise, self._sharers, self._divide = prioritise, sharers, divide
        self._drawn: list[ReplaySample] = []
        self._next: list[asyncio.Future[ReplaySample]] = []
        self._sent: list[asyncio.Future[None]] = []

    async def next(self) -> ReplaySample:
        """Wait for the next batch."""
        if not self._drawn:
            self._next = self._next or self._request()
            shares = [
                await self._ctx.wait(sample.name, pending)
                for sample, pending in zip(self._samples, self._next, strict=True)
            ]
            self._next = self._request()
            # Send the requests before the learner's work blocks this process.
            await asyncio.sleep(0)
            self._drawn = self._cut(shares)
        return self._drawn.pop()

    async def done(self, batch: ReplaySample, priorities: Array | None) -> None:
        """Send the priorities to the shards."""
        if not self._prioritise or priorities is None:
            return
        for edge, sent in zip(self._prioritise, self._sent, strict=False):
            await self._ctx.wait(edge.name, sent)
        shards = len(self._prioritise)
        parts = zip(self._prioritise, np.split(batch.keys, shards), np.split(priorities, shards), strict=True)
        self._sent = [self._ctx.ahead(prioritise(keys, part)) for prioritise, keys, part in parts]

    async def close(self) -> None:
        """Cancel all pending calls."""
        for drawn in self._next:
            drawn.cancel()
        for sent in self._sent:
            sent.cancel()

    def _request(self) -> list[asyncio.Future[ReplaySample]]:
        return [self._ctx.ahead(sample(self._part * self._batches)) for sample in self._samples]

    def _cut(self, shares: list[ReplaySample]) -> list[ReplaySample]:
        """Cut the samples into batches with an equal part of each shard; the last is used first."""
        largest = max(share.weights.max() for share in shares)
        for share in shares:
            share.weights = share.weights / largest if self._divide else share.weights
            share.env_steps_at_sample //= self._sharers
        starts = range(0, self._part * self._batches, self._part)
        return [
            concat_batches([share.part(start, start + self._part) for share in shares]) for start in reversed(starts)
        ]


class StreamInsert:
    """Inserts unrolls with the actor's stream, so that a replay can join them. `inserted`: items in the replay so far.

    That count outlives any actor, so schedules that follow it need no checkpoint.
    """

    def __init__(self, ctx: Context, insert: InsertStream) -> None:
        me = ctx.identity
        self._insert, self._stream = insert, Stream((me.role, me.index), me.incarnation)
        self.name = insert.name
        self.inserted = 0

    async def __call__(self, unroll: Unroll, /) -> None:
        self.inserted = await self._insert(self._stream, unroll)
