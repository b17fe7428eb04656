"""WeightStore: the newest weights, for whoever wants them newer than what they have."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import ClassVar

from thespis.runtime.context import Context
from thespis.types import Version, Versioned


class WeightStore:
    """Newest wins. Nobody is ever given a version lower than one it has seen.

    `hold_back`: serve weights that are this many updates old, to study lag; 0 serves the newest.
    """

    EDGES: ClassVar = {"publish": "weights", "pull": "weights", "follow": "weights"}
    FORWARDS: ClassVar = True  # it looks at versions only

    def __init__(self, ctx: Context, *, hold_back: int = 0) -> None:
        self._ctx = ctx
        self._held: deque[Versioned] = deque(maxlen=hold_back + 1)
        self._changed = asyncio.Condition()

    async def publish(self, weights: Versioned) -> None:
        if self._held and weights.version <= self._held[-1].version:
            self._ctx.count("dropped/old_weights")
            return
        async with self._changed:
            self._held.append(weights)
            self._changed.notify_all()

    async def pull(self, newer_than: Version | None) -> Versioned | None:
        """The served weights, or None if the caller has them already. Waits only for the first ones there are."""
        if newer_than is None:
            return await self.follow(None)
        if not self._held:
            return None
        served = self._held[0]
        return served if served.version > newer_than else None

    async def follow(self, newer_than: Version | None) -> Versioned:
        """The served weights, as soon as they are newer than what the caller has."""

        def newer() -> bool:
            return bool(self._held) and (newer_than is None or self._held[0].version > newer_than)

        async with self._changed:
            await self._changed.wait_for(newer)
            return self._held[0]
