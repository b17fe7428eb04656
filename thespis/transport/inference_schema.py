"""Encoding of the messages between an actor and an inference server: numbers and arrays in a fixed order.

    actor                                        server
    hello: actor, layout of its arrays       -->
                                             <-- hello: layout that the server accepts
    request: header, arrays                  -->
                                             <-- response: header, arrays

Shapes and dtypes are negotiated in the hello. Later messages carry none and are validated by length alone. Data from
the network is only measured and copied; it is never unpickled, and no name in it is resolved.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from thespis.core.edges import OpenSession
from thespis.core.payloads import ActResponse
from thespis.core.types import Array, Stream, Tree
from thespis.envs.spaces import AnySpace, Leaf, leaves
from thespis.experience.trajectory_assembler import StepMessage, count_truncated

_MAGIC = b"THESPIS1"
_HELLO = struct.Struct("<8sqq")  # magic, actor, incarnation; the layout follows as text
_HEAD = struct.Struct("<qIIq")
# Number of the request, index of the first environment, number of environments; then in a request the number of final
# observations (-1: none are sent), in a response the packed version of the weights.
_ALIGN = 8
_PADDING = bytes(_ALIGN)
_LEAST_LIMIT = 4096
"""Minimum message limit: a hello must fit, however small the arrays are."""


class MalformedMessage(ValueError):
    """A message that does not follow the schema."""


class Hello(NamedTuple):
    """The first message of a stream: the actor, its incarnation and the layout of its arrays."""

    actor: int
    incarnation: int
    layout: str


@dataclass(frozen=True)
class InferenceSchema:
    """The arrays of a stream's messages: observation and action of one environment, and the number of environments."""

    observation: tuple[Leaf, ...]
    action: Leaf
    environments: int

    @classmethod
    def of(cls, observations: AnySpace, actions: AnySpace, environments: int) -> InferenceSchema:
        """Build the schema of a policy's spaces."""
        dtype = np.dtype(np.float32 if isinstance(actions, Box) else np.int64)
        return cls(tuple(leaves(observations)), Leaf(None, actions.shape or (), dtype), environments)

    def __str__(self) -> str:
        observation = ", ".join(f"{leaf.name} {_describe(leaf)}" for leaf in self.observation)
        return f"{observation}, action {_describe(self.action)}, {self.environments} environments"

    @property
    def limit(self) -> int:
        """Length of the longest message in bytes."""
        rows = self.environments
        return max(_LEAST_LIMIT, self._request_bytes(rows, rows), self._response_bytes(rows))

    # -- hello ------------------------------------------------------------------------------------

    def hello(self, actor: int, incarnation: int) -> bytes:
        """Encode a hello."""
        return _HELLO.pack(_MAGIC, actor, incarnation) + str(self).encode()

    # -- requests ---------------------------------------------------------------------------------

    def encode_request(self, step: StepMessage) -> bytes:
        """Encode a request."""
        finals = [] if step.finals is None else self.listed(step.finals)
        head = _HEAD.pack(step.number, step.start, len(step.flags), len(finals[0]) if finals else -1)
        return _packed(head, [*self.listed(step.obs), step.rewards, step.flags, *finals])

    def decode_request(self, message: bytes, stream: Stream) -> StepMessage:
        """Decode a request into newly allocated arrays. Raise MalformedMessage if it does not follow the schema."""
        number, start, rows, finals = _head(message)
        if not 0 < rows <= self.environments - start or not -1 <= finals <= rows or number < 0:
            raise MalformedMessage(f"a request of {rows} environments from {start} on, of {self.environments}")
        if len(message) != self._request_bytes(rows, finals):
            raise MalformedMessage(f"a request of {len(message)} bytes, not {self._request_bytes(rows, finals)}")
        memory = bytearray(message)
        obs, at = self._tree(memory, _HEAD.size, rows)
        rewards = np.ndarray((rows,), np.float32, memory, at)
        at += _aligned(rewards.nbytes)
        flags = np.ndarray((rows,), np.uint8, memory, at)
        at += _aligned(flags.nbytes)
        final: Tree | None = None
        if finals >= 0:
            final, _ = self._tree(memory, at, finals)
            if finals != count_truncated(flags):
                raise MalformedMessage(f"{finals} final observations of {count_truncated(flags)} truncated episodes")
        return StepMessage(stream, start, number, obs, rewards, flags, final)

    # -- responses --------------------------------------------------------------------------------

    def encode_response(self, step: StepMessage, response: ActResponse) -> bytes:
        """Encode the response to a request."""
        head = _HEAD.pack(step.number, step.start, len(response.logp), response.version)
        return _packed(head, [response.actions, response.logp])

    def decode_response(self, message: bytes) -> tuple[int, int, ActResponse]:
        """Decode a response; return the first environment, the number of the request, and the response."""
        number, start, rows, version = _head(message)
        if len(message) != self._response_bytes(rows):
            raise MalformedMessage(f"a response of {len(message)} bytes, not {self._response_bytes(rows)}")
        memory = bytearray(message)
        actions = np.ndarray((rows, *self.action.shape), self.action.dtype, memory, _HEAD.size)
        logp = np.ndarray((rows,), np.float32, memory, _HEAD.size + _aligned(actions.nbytes))
        return start, number, ActResponse(actions, logp, version)

    # -- arrays -----------------------------------------------------------------------------------

    def listed(self, tree: Tree) -> list[Array]:
        """Return the arrays of an observation, in the order of its leaves."""
        return [tree] if isinstance(tree, np.ndarray) else [tree[str(leaf.key)] for leaf in self.observation]

    def _tree(self, memory: bytearray, at: int, rows: int) -> tuple[Tree, int]:
        """Return views of `memory` as an observation of `rows` environments, and the offset of its end."""
        parts: list[Array] = []
        for leaf in self.observation:
            parts.append(np.ndarray((rows, *leaf.shape), leaf.dtype, memory, at))
            at += _aligned(parts[-1].nbytes)
        return self.tree(parts), at

    def tree(self, parts: list[Array]) -> Tree:
        """Build an observation from its arrays."""
        if self.observation[0].key is None:
            return parts[0]
        return {str(leaf.key): part for leaf, part in zip(self.observation, parts, strict=True)}

    def _tree_bytes(self, rows: int) -> int:
        return sum(leaf_bytes(leaf, rows) for leaf in self.observation)

    def _request_bytes(self, rows: int, finals: int) -> int:
        rest = _aligned(rows * np.dtype(np.float32).itemsize) + _aligned(rows)
        return _HEAD.size + self._tree_bytes(rows) + rest + self._tree_bytes(max(0, finals))

    def _response_bytes(self, rows: int) -> int:
        return _HEAD.size + leaf_bytes(self.action, rows) + _aligned(rows * np.dtype(np.float32).itemsize)


def edge_name(open_session: OpenSession) -> str:
    """Return the name of the `act` edge, under which a stream's traffic is counted."""
    return f"{open_session.name.rpartition('.')[0]}.act"


def read_hello(message: bytes) -> Hello:
    """Decode a hello. Raise MalformedMessage for any other message."""
    if len(message) < _HELLO.size or not message.startswith(_MAGIC):
        raise MalformedMessage("a stream opens with a hello of this schema")
    _, actor, incarnation = _HELLO.unpack_from(message)
    return Hello(actor, incarnation, message[_HELLO.size :].decode(errors="replace"))


def _head(message: bytes) -> tuple[int, int, int, int]:
    if len(message) < _HEAD.size:
        raise MalformedMessage(f"a message of {len(message)} bytes")
    number, start, rows, final = _HEAD.unpack_from(message)
    return number, start, rows, final


def _packed(head: bytes, arrays: Sequence[Array]) -> bytes:
    parts: list[Any] = [head]
    for array in arrays:
        parts += np.ascontiguousarray(array).data if array.size else b"", _PADDING[: -array.nbytes % _ALIGN]
    return b"".join(parts)


def _describe(leaf: Leaf) -> str:
    # With its byte order: neither end converts it.
    return f"{leaf.dtype.str}{list(leaf.shape)}"


def leaf_bytes(leaf: Leaf, rows: int) -> int:
    """Return the bytes of `rows` rows of an array, including padding."""
    return _aligned(rows * math.prod(leaf.shape) * leaf.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
