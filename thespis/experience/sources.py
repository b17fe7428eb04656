"""Sources of a learner's batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thespis.core.context import Context, Waiting
from thespis.core.edges import Draw, HasBatch, InsertStream, Preempt, Prioritise, Sample
from thespis.core.payloads import Member
from thespis.core.types import Array, ReplaySample, Stream, Unroll, Version
from thespis.experience.concat import concat_batches
from thespis.experience.writers import concatenate


class QueueSource:
    """Batches of concatenated unrolls. The next sample is requested before the learner starts on this batch.

    So the learner seldom waits for a message, at the cost of one update of lag.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int, preemption: Preemption | None = None) -> None:
        self._ctx, self._sample, self._items, self._preemption = ctx, sample, items, preemption
        self._next: asyncio.Future[list[Unroll]] | None = None

    async def next(self) -> Unroll:
        """Wait for the next batch."""
        if self._preemption is not None:
            return concatenate(await self._preemption.collect(self._sample, self._items))
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
        if self._preemption is not None:
            self._preemption.close()


class OnPolicyRounds:
    """Batches of unrolls of the learner's current version only; its actors wait for the next version.

    Every other unroll is late: its actor was too slow, or it was collected for an earlier incarnation of the learner.
    Late unrolls are dropped and counted, because one such row would make the batch off-policy.
    """

    def __init__(
        self,
        ctx: Context,
        sample: Sample,
        items: int,
        version: Callable[[], Version],
        preemption: Preemption | None = None,
    ) -> None:
        self._ctx, self._sample, self._items, self._version = ctx, sample, items, version
        self._preemption = preemption

    async def next(self) -> Unroll:
        """Wait for a batch of the current version."""
        version = self._version().packed()

        def present(sampled: list[Unroll]) -> list[Unroll]:
            found = [unroll for unroll in sampled if (unroll.versions == version).all()]
            if len(found) < len(sampled):
                self._ctx.count("dropped/late_unrolls", len(sampled) - len(found))
            return found

        if self._preemption is not None:
            return concatenate(await self._preemption.collect(self._sample, self._items, present))
        unrolls: list[Unroll] = []
        while len(unrolls) < self._items:
            unrolls += present(await self._sample(self._items - len(unrolls)))
        return concatenate(unrolls)

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """Do nothing: a queue has no priorities."""

    async def close(self) -> None:
        """Cancel the pending sample, if there is preemption; otherwise no sample is prefetched."""
        if self._preemption is not None:
            self._preemption.close()


class Preemption:
    """Batches of fewer unrolls for a slow learner (DD-PPO; Wijmans et al., 2020, arXiv:1911.00357).

    Each unroll is a call of its own. When enough other learners have a whole batch, this one uses what it has, at least
    one unroll. The calls that are still pending then belong to the next batch, so no experience is lost.
    """

    def __init__(self, ctx: Context, ready: HasBatch, preempt: Preempt, version: Callable[[], Version]) -> None:
        self._ctx, self._ready, self._preempt, self._version = ctx, ready, preempt, version
        self._member = Member(ctx.identity.index, ctx.identity.incarnation)
        self._calls: list[asyncio.Future[list[Unroll]]] = []
        self._sent: asyncio.Future[None] | None = None

    async def collect(
        self, sample: Sample, items: int, present: Callable[[list[Unroll]], list[Unroll]] = list
    ) -> list[Unroll]:
        """Wait for `items` unrolls, or for fewer. `present`: returns the unrolls that may be part of the batch."""
        update = self._version().update
        preempted = self._ctx.ahead(self._preempt(self._member, update))
        unrolls: list[Unroll] = []
        while True:
            self._request(sample, items - len(unrolls))
            done = [call for call in self._calls if call.done()]
            for call in done:
                self._calls.remove(call)
                unrolls += present(call.result())
            if len(unrolls) == items:
                self._sent = self._ctx.ahead(self._ready(self._member, update))
                break
            if unrolls and preempted.done():
                self._ctx.count("group/preempted")
                break
            if not done:
                waiting: list[asyncio.Future[Any]] = [*self._calls, *([] if preempted.done() else [preempted])]
                with Waiting(self._ctx, sample.name):
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self._request(sample, items)
        # Send the requests before the learner's work blocks this process.
        await asyncio.sleep(0)
        return unrolls

    def _request(self, sample: Sample, items: int) -> None:
        """Call until there are `items` calls."""
        self._calls += [self._ctx.ahead(sample(1)) for _ in range(items - len(self._calls))]

    def close(self) -> None:
        """Cancel the pending calls."""
        for call in self._calls:
            call.cancel()
        if self._sent is not None:
            self._sent.cancel()


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
