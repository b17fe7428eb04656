"""A learner's side of the edges to its shards, which hold parts of its network and of its optimiser."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from thespis.core.blocking_calls import BlockingCalls
from thespis.core.context import Context
from thespis.core.edges import ShardEdges
from thespis.core.payloads import ForwardRequest, ShardTurn
from thespis.core.types import Array
from thespis.networks.partition import Pieces

_T = TypeVar("_T")


class ShardLost(Exception):
    """A shard was restarted, so its part of the weights is gone and the learner must start again."""


class ShardGroup:
    """The shards of one learner. They do nothing by themselves, so the learner alone decides what they compute.

    `lock` is held while parameters change and while their state is collected.
    """

    def __init__(self, ctx: Context, shards: Sequence[ShardEdges]) -> None:
        """`shards`: in the order of their processes."""
        self._ctx, self._shards = ctx, list(shards)
        self._calls = BlockingCalls(ctx)
        self._turn = ShardTurn(ctx.identity.incarnation, 0)
        self._tickets = 0
        self._unanswered: list[asyncio.Future[Any]] = []
        self.lock = asyncio.Lock()

    # -- computing --------------------------------------------------------------------------------

    async def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run a function of the learner whose network calls the shards."""
        self._turn = self._turn._replace(number=self._turn.number + 1)
        return await self._calls.run(function, *args)

    def open(self, process: int, block: int) -> ShardPass:
        """Return a new pass through a block; see `RemoteBlocks`."""
        self._tickets += 1
        return ShardPass(self, self._shards[process - 1], self._turn, self._tickets, block)

    def begin(self, name: str, call: Callable[[], Awaitable[_T | None]]) -> Callable[[], _T]:
        """Make a call in the event loop, from a function that `run` runs. The result waits for the response."""

        async def send() -> asyncio.Future[_T | None]:
            return self._ctx.ahead(call())

        pending = self._calls.wait_for(send)
        return lambda: known(self._calls.wait_for(lambda: self._ctx.wait(name, pending)))

    # -- parameters -------------------------------------------------------------------------------

    async def load(self, pieces: Sequence[Pieces]) -> None:
        """Begin a session with the given state of each shard."""
        await self._all(
            [shard.load(self._turn.session, each) for shard, each in zip(self._shards, pieces, strict=True)]
        )

    async def norms(self) -> list[float]:
        """Return the norm of each shard's gradients."""
        return await self._all([shard.norm(self._turn) for shard in self._shards])

    async def gradients(self) -> list[dict[str, Array]]:
        """Return each shard's gradients."""
        return await self._all([shard.gradients(self._turn) for shard in self._shards])

    def step(self, learning_rate: float, scale: float, given: Sequence[dict[str, Array] | None]) -> None:
        """Let all shards apply their gradients times `scale`, or the given ones. `settle` waits until they have."""
        self._unanswered = [
            self._ctx.ahead(shard.step(self._turn, learning_rate, scale, each))
            for shard, each in zip(self._shards, given, strict=True)
        ]

    async def settle(self) -> None:
        """Wait until all steps are applied."""
        for answer in self._unanswered:
            known(await asyncio.shield(answer))  # a learner that is cancelled here waits again before it is saved
        self._unanswered = []

    async def collect(self, slots: bool) -> list[Pieces]:
        """Return each shard's weights, and with `slots` its optimiser state. The caller holds the lock."""
        await self.settle()
        return await self._all([shard.collect(self._turn.session, slots) for shard in self._shards])

    def close(self) -> None:
        """End the thread that computes."""
        self._calls.close()

    @property
    def unloaded(self) -> list[Pieces | None]:
        """One None per shard: it applies its own gradients."""
        return [None for _ in self._shards]

    async def _all(self, calls: Sequence[Awaitable[_T | None]]) -> list[_T]:
        answers = [self._ctx.ahead(call) for call in calls]
        return [known(await answer) for answer in answers]


class ShardPass:
    """One pass through a block of a shard; see `BlockCall`."""

    def __init__(self, group: ShardGroup, shard: ShardEdges, turn: ShardTurn, ticket: int, block: int) -> None:
        self._group, self._shard, self._turn, self._ticket, self._block = group, shard, turn, ticket, block
        self._wait: Callable[[], list[Array]]

    def send_inputs(self, inputs: list[Array], wanted: list[bool] | None) -> None:
        """Start the forward pass."""
        request, edge = ForwardRequest(self._ticket, self._block, inputs, wanted), self._shard.forward
        self._wait = self._group.begin(edge.name, lambda: edge(self._turn, request))

    def outputs(self) -> list[Array]:
        """Wait for the outputs."""
        return self._wait()

    def send_slopes(self, slopes: list[Array]) -> None:
        """Start the backward pass."""
        edge = self._shard.backward
        self._wait = self._group.begin(edge.name, lambda: edge(self._turn, self._ticket, slopes))

    def input_slopes(self) -> list[Array]:
        """Wait for the derivatives by the wanted inputs."""
        return self._wait()


def known(answer: _T | None) -> _T:
    """Return the answer of a shard. Raises `ShardLost` if the shard does not know the session."""
    if answer is None:
        raise ShardLost("a shard of this learner was restarted; the learner starts again from the newest checkpoint")
    return answer
