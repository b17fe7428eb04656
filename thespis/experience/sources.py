"""Where a learner's batches come from."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from thespis.experience.writers import concatenate
from thespis.runtime.context import Context
from thespis.types import Unroll


class Sample(Protocol):
    """The edge to a replay."""

    name: str

    def __call__(self, items: int, /) -> Coroutine[Any, Any, list[Unroll]]: ...


class Batches:
    """Batches of unrolls side by side, the next one always asked for before the learner starts on this one.

    The learner then seldom waits for a message, at the price of one update of lag.
    """

    def __init__(self, ctx: Context, sample: Sample, items: int) -> None:
        self._ctx, self._sample, self._items = ctx, sample, items
        self._next: asyncio.Task[list[Unroll]] | None = None

    async def take(self) -> Unroll:
        if self._next is None:
            self._next = self._ctx.ahead(self._sample(self._items))
        unrolls = await self._ctx.wait(self._sample.name, self._next)
        self._next = self._ctx.ahead(self._sample(self._items))
        # Let the request leave before the learner's work blocks this process.
        await asyncio.sleep(0)
        return concatenate(unrolls)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
