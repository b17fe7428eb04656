"""InferenceServer: one policy acts for all actors, and their trajectories are assembled here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thespis.core import eager_call
from thespis.core.context import Context
from thespis.core.edges import Next
from thespis.core.futures import new_future
from thespis.core.payloads import ActResponse
from thespis.core.service import Method, RoleDescription
from thespis.core.types import (
    Array,
    Inputs,
    PolicyOutput,
    State,
    Stream,
    Tree,
    Unroll,
    Version,
    VersionedWeights,
    map_tree,
)
from thespis.experience.trajectory_assembler import EnvSlot, StepMessage, TrajectoryAssembler
from thespis.transport.inference import InferenceListener, Responder

if TYPE_CHECKING:
    from thespis.core.payloads import InferenceEndpoint
    from thespis.networks.policy_runner import PolicyRunner


InsertUnroll = Callable[[Stream, Unroll], Awaitable[Any]]
"""Receives completed unrolls."""
Explore = Callable[[StepMessage], Array]
"""Returns epsilon of epsilon-greedy exploration for each environment, `[B]`."""


class ResponseFuture:
    """A responder that resolves a future."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response: asyncio.Future[ActResponse] = new_future()

    @property
    def cancelled(self) -> bool:
        """Whether the caller no longer waits."""
        return self.response.done()

    def respond(self, response: ActResponse) -> None:
        """Resolve the future."""
        self.response.set_result(response)


@dataclass(slots=True)
class PendingRequest:
    """A request that waits for its batch."""

    slot: EnvSlot
    rows: int
    epsilon: Array | None
    responder: Responder


@dataclass(frozen=True)
class Batching:
    """When a batch runs: with `rows` rows, or `patience` seconds after its first request.

    `lockstep`: an actor with a completed unroll waits for the next version of the weights.
    """

    rows: int
    patience: float
    lockstep: bool = False


class InferenceServer:
    """Responds to actors in batches. A batch runs when it is full, or some time after its first request.

    So every request gets a response, even with few actors. A batch takes all requests that wait, and the rows
    of one request stay together. Weights change between batches, never within one. If the learner is behind, an unroll
    blocks only its own actor.
    """

    description: ClassVar = RoleDescription(
        methods={
            "act": Method("inference", takes="observations", gives="actions"),
            "open_session": Method("inference", takes="observations", gives="actions"),  # over the stream it opens
        },
        lost="open_unrolls",
    )

    def __init__(
        self,
        ctx: Context,
        runner: PolicyRunner,
        assembler: TrajectoryAssembler,
        follow: Next,
        insert: InsertUnroll,
        batching: Batching,
        explore: Explore | None = None,
        listener: InferenceListener | None = None,
    ) -> None:
        """`listener`: accepts actors that send requests over connections of their own."""
        self._ctx, self._runner, self._assembler, self._follow, self._insert = ctx, runner, assembler, follow, insert
        self._batching, self._explore, self._listener = batching, explore, listener
        self._version = Version(0, 0)
        self._newer: asyncio.Future[VersionedWeights] | None = None
        self._requests: list[PendingRequest] = []
        self._waiting: list[PendingRequest] = []
        self._rows = 0
        self._overdue = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._ready = self._busy = False
        self._under_way: asyncio.Future[None] | None = None
        self._handed: dict[tuple[str, int], asyncio.Future[Any]] = {}

    def act(self, *fields: Any) -> asyncio.Future[ActResponse]:
        """Record the result of the last actions and return the next ones. `fields`: those of a `StepMessage`.

        Not a coroutine: most requests need only a future, and a task for each would cost as much as a forward pass of a
        small network.
        """
        future = ResponseFuture()
        self.request(StepMessage(*fields), future)
        return future.response

    def request(self, message: StepMessage, responder: Responder) -> None:
        """Handle one message; `responder` receives the response, possibly before this call returns."""
        slot = self._assembler.receive(message)
        epsilon = None if self._explore is None else self._explore(message)
        request = PendingRequest(slot, len(message.flags), epsilon, responder)
        unroll = slot.write() if slot.completes else None
        if unroll is None:
            self._enqueue(request)
        else:
            self._hand_over(message, unroll, request)

    async def open_session(self, stream: Stream) -> InferenceEndpoint:
        """Return the endpoint at which this incarnation of an actor can connect."""
        assert self._listener is not None, "an edge to open_session needs a listener"
        return await self._listener.open_session(stream, self.request)

    async def close(self) -> None:
        """Close the listener, if any."""
        if self._listener is not None:
            await self._listener.close()

    async def run(self) -> None:
        """Load weights and run batches until the run ends."""
        await self._adopt()
        self._ready = True
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._under_way is not None:
                under_way, self._under_way = self._under_way, None
                await under_way
            if self._newer is None or self._newer.done():
                await self._adopt()
            if not self._busy and (self._overdue or self._rows >= self._batching.rows):
                await self._serve()

    # -- batches ----------------------------------------------------------------------------------

    def _enqueue(self, request: PendingRequest) -> None:
        """Add a request to the next batch; the first one starts the timer."""
        self._requests.append(request)
        self._rows += request.rows
        if self._rows >= self._batching.rows:
            self._start_batch()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._batching.patience, self._expire)

    def _expire(self) -> None:
        self._overdue = True
        self._start_batch()

    def _start_batch(self) -> None:
        """Run the batch now, unless another one runs or newer weights must be loaded first."""
        if not self._ready or self._busy or self._newer is None or self._newer.done():
            self._wake.set()
            return
        begun = eager_call.begin(self._serve())
        if not begun.done() or begun.exception() is not None:
            self._under_way = begun  # an exception is this role's error, not the last caller's
            self._wake.set()

    async def _serve(self) -> None:
        """Run one batch without the requests of dead actors. Slots write their steps after the responses."""
        requests = [request for request in self._requests if not request.responder.cancelled]
        self._requests, self._rows, self._overdue = [], 0, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not requests:
            return
        self._busy = True
        try:
            async with self._ctx.work("inference", items=sum(request.rows for request in requests)):
                acted = self._act(requests)
            self._respond(requests, acted)
            for request in requests:
                request.slot.write()
        finally:
            self._busy = False

    def _act(self, requests: Sequence[PendingRequest]) -> PolicyOutput:
        if self._explore is not None:
            self._runner.explore(
                np.concatenate([request.epsilon for request in requests if request.epsilon is not None])
            )
        inputs, state = concat_inputs([request.slot for request in requests])
        return self._runner.act(inputs, state)

    def _respond(self, requests: Sequence[PendingRequest], acted: PolicyOutput) -> None:
        """Send each request its own rows."""
        start, version = 0, self._version.packed()
        for request in requests:
            rows = slice(start, start + request.rows)
            start = rows.stop
            mine = acted if len(requests) == 1 else _part(acted, rows)
            request.slot.decide(mine, self._version)
            if not request.responder.cancelled:
                request.responder.respond(ActResponse(mine.actions, mine.logp, version))
        self._ctx.record("inference/batch_fill", start / self._batching.rows)

    async def _adopt(self) -> None:
        """Load newer weights and request the next version."""
        if self._newer is None:
            self._newer = self._ctx.ahead(self._follow(None))
        newer = await self._ctx.wait(self._follow.name, self._newer)
        self._runner.load(newer.weights)
        self._version = newer.version
        self._newer = self._ctx.ahead(self._follow(newer.version))
        if self._batching.lockstep:
            self._newer.add_done_callback(lambda _: self._wake.set())
            waiting, self._waiting = self._waiting, []
            for request in waiting:
                self._enqueue(request)

    # -- unrolls ----------------------------------------------------------------------------------

    def _hand_over(self, message: StepMessage, unroll: Unroll, request: PendingRequest) -> None:
        """Insert an unroll. Its actor continues meanwhile, unless the previous insert is still pending."""
        who, index = message.stream.who
        stream = Stream((f"{who}+{message.start}", index), message.stream.incarnation)
        before = self._handed.get(stream.who)
        if self._batching.lockstep and unroll.versions.max() >= self._version.packed():
            self._handed[stream.who] = self._ctx.ahead(self._insert(stream, unroll))
            self._waiting.append(request)
            return
        if before is None or before.done():
            self._handed[stream.who] = self._ctx.ahead(self._insert(stream, unroll))
            self._enqueue(request)
            return

        async def in_turn() -> None:
            await before
            await self._insert(stream, unroll)

        self._handed[stream.who] = self._ctx.ahead(in_turn())
        before.add_done_callback(lambda _: self._enqueue(request))


def concat_inputs(slots: Sequence[EnvSlot]) -> tuple[Inputs, State]:
    """Concatenate the inputs and recurrent states of several slots into one batch."""
    if len(slots) == 1:
        return slots[0].inputs, slots[0].state
    inputs = [slot.inputs for slot in slots]

    def concat(*leaves: Array) -> Array:
        return np.concatenate(leaves)

    obs: Tree = map_tree(concat, *(part.obs for part in inputs))
    return (
        Inputs(
            obs,
            concat(*(part.first for part in inputs)),
            concat(*(part.last_action for part in inputs)),
            concat(*(part.last_reward for part in inputs)),
        ),
        tuple(concat(*parts) for parts in zip(*(slot.state for slot in slots), strict=True)),
    )


def _part(acted: PolicyOutput, rows: slice) -> PolicyOutput:
    return PolicyOutput(
        acted.actions[rows],
        acted.logp[rows],
        tuple(part[rows] for part in acted.state),
        None if acted.q is None else acted.q[rows],
    )
