"""The shared buffer of an actor and an inference server on one machine, and the messages about it.

Every environment has a slot for its requests and responses. Request arrays are double-buffered: the actor may write a
request while the server still reads the previous one.

Messages on the socket announce changes of the buffer, so they have a fixed length and no arrays. An actor that expects
its response soon spins on the buffer and receives no message, because waking it would take longer.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array, Tree
from thespis.envs.spaces import Leaf
from thespis.transport.inference_schema import InferenceSchema, MalformedMessage, leaf_bytes

REQUEST = struct.Struct("<qIIiI")
# Number of the request, index of the first environment, number of environments, number of final observations (-1: none
# are written), and whether the step has the common flags, which are not written either.
RESPONSE = struct.Struct("<qI")  # number of the request, index of the first environment
WAKE_UP = struct.Struct("<I")  # from an actor that stopped spinning: index of the first environment
MAX_MESSAGE_BYTES = 64
"""Upper bound of the length of any message."""

_WORD = 8
_NUMBER = Leaf(None, (), np.dtype(np.float32))  # a reward or a log-probability
_FLAG = Leaf(None, (), np.dtype(np.uint8))


class RequestArrays(NamedTuple):
    """The arrays of one request, `[B, ...]`. `finals` has room for B final observations."""

    obs: Tree
    rewards: Array
    flags: Array
    finals: Tree


class Slot(NamedTuple):
    """The views of one group of environments. `requests`: arrays for requests of even and of odd numbers.

    `nbytes`: size of a request without final observations plus its response.
    """

    requests: tuple[RequestArrays, RequestArrays]
    actions: Array
    logp: Array
    nbytes: int


class SharedBuffer:
    """Views of the shared memory of one stream.

    Header, int64: [spinning flag][per group: requests answered][per group: packed weight version]. A group's entry is
    at the index of its first environment.
    """

    def __init__(self, layout: InferenceSchema, memory: mmap.mmap) -> None:
        self._layout, self._memory = layout, memory
        self._words = memoryview(memory).cast("q")
        self._versions = 1 + layout.environments
        self._slots: dict[int, Slot] = {}

    @staticmethod
    def size(layout: InferenceSchema) -> int:
        """Return the size of the buffer in bytes."""
        return _head(layout) + sum(leaf_bytes(leaf, layout.environments) for leaf in _leaves(layout))

    @property
    def spinning(self) -> bool:
        """Whether the actor spins on the buffer and needs no message."""
        return self._words[0] != 0

    @spinning.setter
    def spinning(self, value: bool) -> None:
        """Set by the actor."""
        self._words[0] = value

    def publish_response(self, start: int, number: int, version: int) -> None:
        """Mark a request as answered. The response must be written before."""
        self._words[self._versions + start] = version
        self._words[1 + start] = number + 1

    def is_answered(self, start: int, number: int) -> bool:
        """Return whether request `number` is answered."""
        return self._words[1 + start] == number + 1

    def version(self, start: int) -> int:
        """Return the packed weight version of the last response."""
        return self._words[self._versions + start]

    def slot(self, start: int, rows: int) -> Slot:
        """Return the slot of `rows` environments from `start` on."""
        slot = self._slots.get(start)
        if slot is None:
            slot = self._slots[start] = self._make_slot(start, rows)
        if len(slot.logp) != rows:
            raise MalformedMessage(f"environments from {start} on were {len(slot.logp)}, not {rows}")
        return slot

    def _make_slot(self, start: int, rows: int) -> Slot:
        layout = self._layout
        if not 0 < rows <= layout.environments - start:
            raise MalformedMessage(f"a request of {rows} environments from {start} on, of {layout.environments}")
        arrays = self._arrays(start, rows)

        def observation() -> Tree:
            return layout.tree([next(arrays) for _ in layout.observation])

        requests = [RequestArrays(observation(), next(arrays), next(arrays), observation()) for _ in range(2)]
        actions, logp = arrays
        nbytes = sum(leaf.nbytes for leaf in (*layout.listed(requests[0].obs), requests[0].rewards, actions, logp))
        return Slot((requests[0], requests[1]), actions, logp, nbytes + REQUEST.size + RESPONSE.size)

    def _arrays(self, start: int, rows: int) -> Iterator[Array]:
        """Yield the rows of these environments in every array of the buffer."""
        at, environments = _head(self._layout), self._layout.environments
        for leaf in _leaves(self._layout):
            whole: Array = np.ndarray((environments, *leaf.shape), leaf.dtype, self._memory, at)
            at += leaf_bytes(leaf, environments)
            yield whole[start : start + rows]


def _head(layout: InferenceSchema) -> int:
    return _WORD * (1 + 2 * layout.environments)


def _leaves(layout: InferenceSchema) -> Iterator[Leaf]:
    """Yield the arrays of a buffer: request arrays twice, response arrays once."""
    for _ in range(2):
        yield from (*layout.observation, _NUMBER, _FLAG, *layout.observation)
    yield from (layout.action, _NUMBER)
