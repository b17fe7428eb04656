"""Where a learner's batches come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Draw, InsertStream, Prioritise, Sample
from thespis.core.types import Array, Drawn, Stream, Unroll, Version
from thespis.experience.joined import joined
from thespis.experience.writers import concatenate


class Batches:
    """Batches of unrolls side by side, the next one always asked for before the learner starts on this one.

    The learner then seldom waits for a message, at the price of one update of lag.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int) -> None:
        self._ctx, self._sample, self._items = ctx, sample, items
        self._next: asyncio.Future[list[Unroll]] | None = None

    async def take(self) -> Unroll:
        if self._next is None:
            self._next = self._ctx.ahead(self._sample(self._items))
        unrolls = await self._ctx.wait(self._sample.name, self._next)
        self._next = self._ctx.ahead(self._sample(self._items))
        # Let the request leave before the learner's work blocks this process.
        await asyncio.sleep(0)
        return concatenate(unrolls)

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """A queue wants nothing back."""

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()


class Rounds:
    """Batches of unrolls that were all made by the learner's present version; its actors wait for the next one.

    Any other unroll is late: of an actor that was not waited for, or made for a learner's life before this one. It is
    dropped and counted, because a batch that is on-policy but for some rows is not.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int, version: Callable[[], Version]) -> None:
        self._ctx, self._sample, self._items, self._version = ctx, sample, items, version

    async def take(self) -> Unroll:
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
        """A queue wants nothing back."""

    async def close(self) -> None:
        """Nothing is asked for ahead."""


class Draws:
    """Batches of what a replay holds, or its shards. Several are drawn by one call, the next is always made ahead.

    Every shard gives an equal part of each batch, so item i of one of S shards is drawn with probability P(i) / S: the
    importance weights of all are comparable, and are divided by the largest of what the calls brought together.
    With `prioritise`, what an update found of a batch goes back to where it came from while the next is learned from.
    """

    def __init__(
        self,
        ctx: Context,
        samples: Sequence[Draw],
        batch: int,
        batches: int,
        prioritise: Sequence[Prioritise] = (),
        sharers: int = 1,
    ) -> None:
        """`samples`, `prioritise`: the edges to each shard. `sharers`: how many learners draw from this replay; each
        counts its share of the steps in it.
        """
        self._ctx, self._samples, self._part, self._batches = ctx, samples, batch // len(samples), batches
        self._prioritise, self._sharers = prioritise, sharers
        self._drawn: list[Drawn] = []
        self._next: list[asyncio.Future[Drawn]] = []
        self._sent: list[asyncio.Future[None]] = []

    async def take(self) -> Drawn:
        if not self._drawn:
            self._next = self._next or self._ask()
            shares = [
                await self._ctx.wait(sample.name, answer)
                for sample, answer in zip(self._samples, self._next, strict=True)
            ]
            self._next = self._ask()
            # Let the requests leave before the learner's work blocks this process.
            await asyncio.sleep(0)
            self._drawn = self._cut(shares)
        return self._drawn.pop()

    async def done(self, batch: Drawn, priorities: Array | None) -> None:
        if not self._prioritise or priorities is None:
            return
        for edge, sent in zip(self._prioritise, self._sent, strict=False):
            await self._ctx.wait(edge.name, sent)
        shards = len(self._prioritise)
        parts = zip(self._prioritise, np.split(batch.keys, shards), np.split(priorities, shards), strict=True)
        self._sent = [self._ctx.ahead(prioritise(keys, part)) for prioritise, keys, part in parts]

    async def close(self) -> None:
        for drawn in self._next:
            drawn.cancel()
        for sent in self._sent:
            sent.cancel()

    def _ask(self) -> list[asyncio.Future[Drawn]]:
        return [self._ctx.ahead(sample(self._part * self._batches)) for sample in self._samples]

    def _cut(self, shares: list[Drawn]) -> list[Drawn]:
        """Batches of as much from each shard; the last is taken first."""
        largest = max(share.weights.max() for share in shares)
        for share in shares:
            share.weights = share.weights / largest
            share.taken //= self._sharers
        starts = range(0, self._part * self._batches, self._part)
        return [joined([share.part(start, start + self._part) for share in shares]) for start in reversed(starts)]


class Streamed:
    """Says whose unrolls these are, so that a replay can join them. `inserted`: what the replay had from all by then.

    That count outlives any actor, so schedules that follow it need nothing of their own in a checkpoint.
    """

    def __init__(self, ctx: Context, insert: InsertStream) -> None:
        me = ctx.identity
        self._insert, self._stream = insert, Stream((me.role, me.index), me.incarnation)
        self.name = insert.name
        self.inserted = 0

    async def __call__(self, unroll: Unroll, /) -> None:
        self.inserted = await self._insert(self._stream, unroll)
