"""ShardedLearner: a learner whose network is divided over several processes. It commands its shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from thespis.algorithms.updates.update import Update
from thespis.core.context import Context
from thespis.core.edges import Publish
from thespis.core.payloads import RoleState
from thespis.core.types import Array
from thespis.exchange.protocol import Exchange
from thespis.exchange.shards import ShardGroup
from thespis.networks.partition import Pieces, StateLayout
from thespis.roles.learner import _T, Learner, Source


class RemoteParts(NamedTuple):
    """The part of a network that a learner does not hold: its shards, all names, and the shards' initial weights."""

    shards: ShardGroup
    layout: StateLayout
    pieces: list[Pieces]


class ShardedLearner(Learner):
    """Computes the update; its network calls the shards for their parts.

    Its state is that of a learner with a whole network, so checkpoints, published weights and equal learners do not
    depend on the layout. If a shard is restarted, the learner ends with `ShardLost` and starts again from the newest
    checkpoint.
    """

    def __init__(
        self,
        ctx: Context,
        source: Source,
        update: Update,
        exchange: Exchange,
        publish: Publish,
        *,
        publish_every: int,
        remote: RemoteParts,
    ) -> None:
        """`publish_every`: updates between two published versions."""
        super().__init__(ctx, source, update, exchange, publish, publish_every)
        self._shards, self._layout, pieces = remote
        self._unsent: list[Pieces] | None = pieces
        self._collected: list[Pieces] | None = None

    async def snapshot(self) -> RoleState:
        """Return the whole state, for an equal learner."""
        async with self.collected():
            return self.state()

    @asynccontextmanager
    async def collected(self) -> AsyncIterator[None]:
        """Collect the state of the shards, for `state`. No parameter changes in this block."""
        async with self._shards.lock:
            try:
                await self._send_pieces()
                self._collected = await self._shards.collect(slots=True)
                yield
            finally:
                self._collected = None

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the whole state, within a block of `collected`."""
        assert self._collected is not None, "the state of the shards must be collected first"
        arrays, values = super().state()
        return self._layout.join(arrays, self._collected), values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load a whole state. The shards receive theirs before the next batch."""
        own, self._unsent = self._layout.split(arrays)
        super().restore(own, values)

    async def close(self) -> None:
        """Close the source and the thread."""
        self._shards.close()
        await super().close()

    async def _enter(self) -> None:
        await self._exchange.begin(self)
        async with self._shards.lock:
            await self._send_pieces()
        await self._share()

    async def _send_pieces(self) -> None:
        """Send the shards the state that they do not have yet, under the lock."""
        while self._unsent is not None:
            pieces = self._unsent
            await self._shards.load(pieces)
            if self._unsent is pieces:
                self._unsent = None

    async def _take(self, parts: Iterator[tuple[int, Any]]) -> tuple[int, Any] | None:
        if self._update.minibatches is None:
            return next(parts, None)
        return await self._shards.run(next, parts, None)

    async def _compute(self, kind: str, items: int, function: Callable[..., _T], *args: Any) -> _T:
        async with self._ctx.work(kind, items):
            return await self._shards.run(function, *args)

    async def _weights(self) -> dict[str, Array]:
        async with self._shards.lock:
            pieces = await self._shards.collect(slots=False)
        own = {f"weights/{name}": array for name, array in self._update.weights().items()}
        return {key.removeprefix("weights/"): array for key, array in self._layout.join(own, pieces).items()}
