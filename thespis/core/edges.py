"""Types of edges, as a caller sees them: async functions with a `name`, under which metrics count the edge's traffic.

A role's constructor names the services it calls by these types. `Handle.edge(Service.method)` has the signature of the
method, so a type checker reports an edge that is passed for the wrong parameter.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from thespis.core.payloads import (
        ActResponse,
        Admission,
        BlockAddress,
        Combined,
        CompressedWeights,
        Contribution,
        ForwardRequest,
        GradientMessage,
        InferenceEndpoint,
        Member,
        NodeContribution,
        RoleState,
        ShardTurn,
    )
    from thespis.core.types import (
        Array,
        GradientMeta,
        Labelled,
        ParameterLayout,
        ParameterSlice,
        ReplaySample,
        Stream,
        Unroll,
        Version,
        VersionedWeights,
    )


# Evolution strategies and populations define their own payloads, so these edges are generic.
RequestT = TypeVar("RequestT", contravariant=True)
ResultT = TypeVar("ResultT", contravariant=True)
OrderT = TypeVar("OrderT", covariant=True)
SegmentT = TypeVar("SegmentT", covariant=True)
OutcomeT = TypeVar("OutcomeT", contravariant=True)


class Named(Protocol):
    """Base of all edges: an object with the name `caller.service.method`."""

    name: str


# -- experience -----------------------------------------------------------------------------------


class Insert(Named, Protocol):
    """Insert an unroll into a queue; blocks until the queue has room."""

    def __call__(self, unroll: Unroll, /) -> Awaitable[None]: ...


class Sample(Named, Protocol):
    """Remove and return the oldest `items` unrolls of a queue; blocks until it has that many."""

    def __call__(self, items: int, /) -> Awaitable[list[Unroll]]: ...


class InsertStream(Named, Protocol):
    """Append an unroll to its stream in a replay buffer; blocks while the rate limiter requires.

    Returns the number of items inserted so far.
    """

    def __call__(self, stream: Stream, unroll: Unroll, /) -> Awaitable[int]: ...


class Draw(Named, Protocol):
    """Sample `items` items of a replay buffer, with keys and importance weights; blocks while the limiter requires."""

    def __call__(self, items: int, /) -> Awaitable[ReplaySample]: ...


class Prioritise(Named, Protocol):
    """Set new priorities of the replay items with these keys."""

    def __call__(self, keys: Array, priorities: Array, /) -> Awaitable[None]: ...


class ReplayEdges(NamedTuple):
    """The edges from a learner to a replay buffer. `prioritise`: None if the replay samples uniformly."""

    sample: Draw
    prioritise: Prioritise | None


class UnrollStorage(NamedTuple):
    """Where an inference server inserts unrolls: into a queue (`insert`) or into a replay (`insert_stream`).

    `lockstep`: after each unroll, an actor waits for the next weight version.
    """

    insert: Insert | None = None
    insert_stream: InsertStream | None = None
    lockstep: bool = False


class InsertLabelled(Named, Protocol):
    """Insert a batch with targets from a Bellman updater into a train buffer; blocks until it has room."""

    def __call__(self, batch: Labelled, /) -> Awaitable[None]: ...


class SampleLabelled(Named, Protocol):
    """Remove and return the oldest `items` labelled batches of a train buffer; blocks until it has that many."""

    def __call__(self, items: int, /) -> Awaitable[list[Labelled]]: ...


# -- weights --------------------------------------------------------------------------------------


class Publish(Named, Protocol):
    """Publish a version of the weights to a weight store."""

    def __call__(self, weights: VersionedWeights, /) -> Awaitable[None]: ...


class Pull(Named, Protocol):
    """Return newer weights, or None if there are none; does not block."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[VersionedWeights | None]: ...


class PullForActing(Named, Protocol):
    """Return newer weights to act with, exact or compressed; None if there are none, or blocks until there are."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[VersionedWeights | CompressedWeights | None]: ...


class Next(Named, Protocol):
    """Return newer weights; blocks until a weight store has them."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[VersionedWeights]: ...


class PullSlice(Named, Protocol):
    """Return newer values of a parameter server's slice, or None if there are none; does not block."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[ParameterSlice | None]: ...


class Join(Named, Protocol):
    """Register a worker at a parameter server; returns its slice and the clock from which the worker counts pushes."""

    def __call__(
        self, worker: int, values: Array, layout: ParameterLayout, /
    ) -> Awaitable[tuple[ParameterSlice, int]]: ...


class JoinShared(Named, Protocol):
    """Register a worker at the owner of shared parameters; returns the address of their memory."""

    def __call__(self, worker: int, values: Array, layout: ParameterLayout, /) -> Awaitable[BlockAddress]: ...


class After(Named, Protocol):
    """Wait until a parameter server has made `updates` updates."""

    def __call__(self, updates: int, /) -> Awaitable[None]: ...


# -- inference ------------------------------------------------------------------------------------


class Act(Named, Protocol):
    """Send the results of the last actions to an inference server; returns the next actions.

    The arguments are the fields of a `StepMessage` (thespis/experience/trajectory_assembler.py).
    """

    def __call__(self, *fields: object) -> Awaitable[ActResponse]: ...


class OpenSession(Named, Protocol):
    """Return the endpoint at which an actor can open its own connection to an inference server."""

    def __call__(self, stream: Stream, /) -> Awaitable[InferenceEndpoint]: ...


# -- gradients ------------------------------------------------------------------------------------


class Push(Named, Protocol):
    """Push a gradient to a parameter server; returns its slice after that, or None if it lost its parameters."""

    def __call__(self, gradient: GradientMessage, meta: GradientMeta, /) -> Awaitable[ParameterSlice | None]: ...


class Heartbeat(Named, Protocol):
    """Report to a group of learners, or to an aggregator, that this one is alive; returns when the next has arrived."""

    def __call__(self, member: Member, /) -> Awaitable[None]: ...


class ServerEdges(NamedTuple):
    """The edges from a worker to all parameter servers, one per shard, or to the aggregator of its node.

    `heartbeat`: to an aggregator, which goes on without a worker that sends none; servers need none.
    """

    joins: tuple[Join, ...]
    pushes: tuple[Push, ...]
    heartbeat: Heartbeat | None = None


class JoinGroup(Named, Protocol):
    """Enter a group of learners with the given update count and digest of the weights; blocks until admitted."""

    def __call__(self, member: Member, update: int, digest: int, /) -> Awaitable[Admission]: ...


class Offer(Named, Protocol):
    """Send the state of a learner to the learners that wait to enter its group."""

    def __call__(self, member: Member, state: RoleState, /) -> Awaitable[None]: ...


class Combine(Named, Protocol):
    """Contribute to a round of a group of learners; blocks until all have. None: the group continued without it."""

    def __call__(self, member: Member, part: Contribution, /) -> Awaitable[Combined | None]: ...


class CombineNode(Named, Protocol):
    """Contribute to a round for several learners; blocks until all have. None: the group continued without them."""

    def __call__(self, given: NodeContribution, /) -> Awaitable[Combined | None]: ...


class Leave(Named, Protocol):
    """Tell a group of learners that this one is gone, or that it was `silent` for too long."""

    def __call__(self, member: Member, silent: bool, /) -> Awaitable[None]: ...


class HasBatch(Named, Protocol):
    """Signal to a group of learners that this one has a whole batch for an update."""

    def __call__(self, member: Member, update: int, /) -> Awaitable[None]: ...


class Preempt(Named, Protocol):
    """Wait until enough learners of a group have a batch for an update."""

    def __call__(self, member: Member, update: int, /) -> Awaitable[None]: ...


class PreemptionEdges(NamedTuple):
    """The edges by which the learners of a group cut each other's wait for a batch short."""

    ready: HasBatch
    preempt: Preempt


class GroupEdges(NamedTuple):
    """The edges from a learner to its group. `preemption`: None if all learners wait for whole batches."""

    heartbeat: Heartbeat
    join: JoinGroup
    offer: Offer
    combine: Combine
    preemption: PreemptionEdges | None = None


class NodeEdges(NamedTuple):
    """The edges from the aggregator of a node to the group of all learners."""

    heartbeat: Heartbeat
    join: JoinGroup
    offer: Offer
    combine: CombineNode
    leave: Leave
    preemption: PreemptionEdges | None = None


class PlaceOrder(Named, Protocol[RequestT, ResultT, OrderT]):
    """Send the result of one unit of work to a coordinator; returns the next unit."""

    def __call__(self, request: RequestT, result: ResultT | None, /) -> Awaitable[OrderT]: ...


# -- shards of a learner --------------------------------------------------------------------------


class LoadShard(Named, Protocol):
    """Begin a session with a shard, and set its whole state."""

    def __call__(self, session: int, pieces: dict[str, Array], /) -> Awaitable[bool]: ...


class ForwardShard(Named, Protocol):
    """Compute a block of a shard; None if the shard does not know the session."""

    def __call__(self, turn: ShardTurn, request: ForwardRequest, /) -> Awaitable[list[Array] | None]: ...


class BackwardShard(Named, Protocol):
    """Compute the backward pass of an earlier pass; None if the shard does not know the session."""

    def __call__(self, turn: ShardTurn, ticket: int, slopes: list[Array], /) -> Awaitable[list[Array] | None]: ...


class NormOfShard(Named, Protocol):
    """Return the norm of a shard's gradients; None if the shard does not know the session."""

    def __call__(self, turn: ShardTurn, /) -> Awaitable[float | None]: ...


class GradientsOfShard(Named, Protocol):
    """Return a shard's gradients by parameter; None if the shard does not know the session."""

    def __call__(self, turn: ShardTurn, /) -> Awaitable[dict[str, Array] | None]: ...


class StepShard(Named, Protocol):
    """Apply a shard's gradients times a scale, or the given ones; None if the shard does not know the session."""

    def __call__(
        self, turn: ShardTurn, learning_rate: float, scale: float, given: dict[str, Array] | None, /
    ) -> Awaitable[bool | None]: ...


class CollectShard(Named, Protocol):
    """Return a shard's weights, and if requested its optimiser state; None if it does not know the session."""

    def __call__(self, session: int, slots: bool, /) -> Awaitable[dict[str, Array] | None]: ...


class ShardEdges(NamedTuple):
    """The edges from a learner to one shard."""

    load: LoadShard
    forward: ForwardShard
    backward: BackwardShard
    norm: NormOfShard
    gradients: GradientsOfShard
    step: StepShard
    collect: CollectShard


# -- population -----------------------------------------------------------------------------------


class Take(Named, Protocol[SegmentT]):
    """Return the next training segment of a slot from a population controller."""

    def __call__(self, slot: int, /) -> Awaitable[SegmentT]: ...


class Ready(Named, Protocol[OutcomeT]):
    """Report the outcome of a population member's segment; the controller then decides how the member continues."""

    def __call__(self, outcome: OutcomeT, /) -> Awaitable[None]: ...
