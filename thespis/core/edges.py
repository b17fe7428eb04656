"""What every edge is to its caller: an async function with a name, which the metrics of the edge carry.

A role or a builder says by these types which services it calls. `Handle.edge(Service.method)` has the type of the
method, so a type checker refuses an edge that is passed for another.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from thespis.core.messages import Answer, Invitation, Place
    from thespis.core.types import Array, Drawn, Labelled, Layout, Slice, Stamp, Stream, Unroll, Version, Versioned


AskT = TypeVar("AskT", contravariant=True)
ResultT = TypeVar("ResultT", contravariant=True)
OrderT = TypeVar("OrderT", covariant=True)
SegmentT = TypeVar("SegmentT", covariant=True)
OutcomeT = TypeVar("OutcomeT", contravariant=True)
# Payloads of evolution strategies and of populations: the packages that define them name them.


class Named(Protocol):
    """What all edges have: the name `caller.service.method`."""

    name: str


# -- experience -----------------------------------------------------------------------------------


class Insert(Named, Protocol):
    """A queue stores an unroll, and answers when there is room for it."""

    def __call__(self, unroll: Unroll, /) -> Awaitable[None]: ...


class Sample(Named, Protocol):
    """A queue hands out its oldest `items` unrolls, each of them once."""

    def __call__(self, items: int, /) -> Awaitable[list[Unroll]]: ...


class InsertStream(Named, Protocol):
    """A replay joins an unroll to what it has of the stream, and answers with the number of items it ever held."""

    def __call__(self, stream: Stream, unroll: Unroll, /) -> Awaitable[int]: ...


class Draw(Named, Protocol):
    """A replay draws `items` of its items, with their keys and importance weights."""

    def __call__(self, items: int, /) -> Awaitable[Drawn]: ...


class Prioritise(Named, Protocol):
    """A replay gives new priorities to the items with these keys."""

    def __call__(self, keys: Array, priorities: Array, /) -> Awaitable[None]: ...


class InsertLabelled(Named, Protocol):
    """A train buffer stores a batch that a Bellman updater has labelled."""

    def __call__(self, batch: Labelled, /) -> Awaitable[None]: ...


class SampleLabelled(Named, Protocol):
    """A train buffer hands out its oldest `items` labelled batches, each of them once."""

    def __call__(self, items: int, /) -> Awaitable[list[Labelled]]: ...


# -- weights --------------------------------------------------------------------------------------


class Publish(Named, Protocol):
    """A weight store takes a version of the weights, to serve it from then on."""

    def __call__(self, weights: Versioned, /) -> Awaitable[None]: ...


class Pull(Named, Protocol):
    """A service answers at once with newer weights, or with None if there are none."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[Versioned | None]: ...


class Next(Named, Protocol):
    """A weight store answers with newer weights as soon as there are any."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[Versioned]: ...


class PullSlice(Named, Protocol):
    """A parameter server answers at once with newer values of its slice, or with None if there are none."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[Slice | None]: ...


class Join(Named, Protocol):
    """A parameter server admits a worker, and answers with its slice and the clock to count pushes from."""

    def __call__(self, worker: int, values: Array, layout: Layout, /) -> Awaitable[tuple[Slice, int]]: ...


class JoinShared(Named, Protocol):
    """The owner of shared parameters admits a worker, and answers with where their memory is."""

    def __call__(self, worker: int, values: Array, layout: Layout, /) -> Awaitable[Place]: ...


class After(Named, Protocol):
    """A parameter server answers once so many updates were made."""

    def __call__(self, updates: int, /) -> Awaitable[None]: ...


# -- inference ------------------------------------------------------------------------------------


class Act(Named, Protocol):
    """An inference server takes what the last actions led to, a `Told` word by word, and answers with the next ones."""

    def __call__(self, *words: object) -> Awaitable[Answer]: ...


class Invite(Named, Protocol):
    """An inference server says where an actor can open a stream of its own."""

    def __call__(self, stream: Stream, /) -> Awaitable[Invitation]: ...


# -- gradients ------------------------------------------------------------------------------------


class Push(Named, Protocol):
    """A parameter server takes a gradient of its slice, and answers with the values that hold then, if it has any."""

    def __call__(self, wire: Array, stamp: Stamp, /) -> Awaitable[Slice | None]: ...


class PlaceOrder(Named, Protocol[AskT, ResultT, OrderT]):
    """A coordinator takes the returns of one unit of work, and answers with the next unit."""

    def __call__(self, ask: AskT, result: ResultT | None, /) -> Awaitable[OrderT]: ...


# -- population -----------------------------------------------------------------------------------


class Take(Named, Protocol[SegmentT]):
    """A controller answers with what the trainer of a slot is to do next."""

    def __call__(self, slot: int, /) -> Awaitable[SegmentT]: ...


class Ready(Named, Protocol[OutcomeT]):
    """A controller takes what a member of the population has reached, and decides how it goes on."""

    def __call__(self, outcome: OutcomeT, /) -> Awaitable[None]: ...
