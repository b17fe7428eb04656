"""Weight stores: hold the newest weights and serve them to callers with an older version."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from thespis.core.context import Context
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Version, VersionedWeights

if TYPE_CHECKING:
    from thespis.core.payloads import CompressedWeights
    from thespis.exchange.weights import WeightEncoder


class WeightStore:
    """Serves the newest weights; the version a caller receives never decreases.

    `hold_back`: serve weights that are this many updates old, to study lag; 0 serves the newest.
    """

    description: ClassVar = RoleDescription(
        methods={
            "publish": Method("weights", takes="weights", retained=True),
            "pull": Method("weights", gives="weights"),
            "next": Method("weights", gives="weights"),
        },
        forwards=True,
    )

    def __init__(self, ctx: Context, *, hold_back: int = 0) -> None:
        self._ctx = ctx
        self._held: deque[VersionedWeights] = deque(maxlen=hold_back + 1)
        self._moved = asyncio.Event()

    async def publish(self, weights: VersionedWeights) -> None:
        """Store newer weights; older ones are dropped and counted."""
        if self._held and weights.version <= self._held[-1].version:
            if weights.version < self._held[-1].version:
                self._ctx.count("dropped/old_weights")
            return
        self._held.append(weights)
        self._moved.set()
        self._moved = asyncio.Event()

    async def pull(self, newer_than: Version | None) -> VersionedWeights | None:
        """The served weights, or None if the caller has this version. Waits only before the first publish."""
        if newer_than is None:
            return await self.next(None)
        return self._held[0] if self._serves(newer_than) else None

    async def next(self, newer_than: Version | None) -> VersionedWeights:
        """Wait for weights newer than `newer_than`: keeps a caller in step with the learner."""
        while not self._serves(newer_than):
            await self._moved.wait()
        return self._held[0]

    def _serves(self, newer_than: Version | None) -> bool:
        return bool(self._held) and (newer_than is None or self._held[0].version > newer_than)


class CompressedWeightStore:
    """Serves the newest weights to actors in bfloat16, whole or as differences, and to others exactly.

    It encodes a version when the first actor pulls it, once for each version that actors come from.
    """

    description: ClassVar = RoleDescription(
        methods={
            "publish": Method("weights", takes="weights", retained=True),
            "pull": Method("weights", gives="compressed weights"),
            "next": Method("weights", gives="compressed weights"),
            "pull_exact": Method("weights", gives="weights"),
        },
        forwards=True,
    )

    def __init__(self, ctx: Context, encoder: WeightEncoder, *, hold_back: int = 0) -> None:
        self._store, self._encoder = WeightStore(ctx, hold_back=hold_back), encoder

    async def publish(self, weights: VersionedWeights) -> None:
        """Store newer weights; older ones are dropped and counted."""
        await self._store.publish(weights)

    async def pull_exact(self, newer_than: Version | None) -> VersionedWeights | None:
        """The served weights in float32, or None if the caller has this version. Waits only before the first."""
        return await self._store.pull(newer_than)

    async def pull(self, newer_than: Version | None) -> CompressedWeights | None:
        """The served weights for a caller that acts on `newer_than`; None if these are the served ones."""
        found = await self._store.pull(newer_than)
        return None if found is None else await self._encoder.encode(found, newer_than)

    async def next(self, newer_than: Version | None) -> CompressedWeights:
        """Wait for a version newer than the caller's."""
        return await self._encoder.encode(await self._store.next(newer_than), newer_than)
