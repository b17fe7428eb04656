"""What an actor and an inference server say to each other over a stream: numbers and arrays in a fixed order.

    actor                                        server
    hello: who, and the layout of its arrays -->
                                             <-- hello: the layout that it takes
    question: header, arrays                 -->
                                             <-- answer: header, arrays

Shapes and dtypes are agreed on once and are in no later message, whose length therefore says whether it is one. What
comes from the network is only ever measured and copied; nothing in it is looked up, called or unpickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from thespis.core.edges import Invite
from thespis.core.messages import Answer
from thespis.core.types import Array, Stream, Tree
from thespis.envs.spaces import AnySpace, Leaf, leaves
from thespis.experience.seats import Told, count_truncated

_MAGIC = b"THESPIS1"
_HELLO = struct.Struct("<8sqq")  # magic, actor, incarnation; the layout follows as text
_HEAD = struct.Struct("<qIIq")
# How often these environments have asked before, the first of them, how many they are; then in a question the rows of
# last observations (-1: none are told), in an answer the packed version that acted.
_ALIGN = 8
_PADDING = bytes(_ALIGN)
_LEAST_LIMIT = 4096
"""A hello must fit, however small the arrays are."""


class Malformed(ValueError):
    """A message that is none of this schema."""


class Hello(NamedTuple):
    """Who comes, and what the arrays are like that it sends."""

    actor: int
    incarnation: int
    layout: str


@dataclass(frozen=True)
class Layout:
    """The arrays of all messages of one stream: what one environment sees and does, and how many there are at most."""

    observation: tuple[Leaf, ...]
    action: Leaf
    environments: int

    @classmethod
    def of(cls, observations: AnySpace, actions: AnySpace, environments: int) -> Layout:
        """For spaces as a policy sees them."""
        dtype = np.dtype(np.float32 if isinstance(actions, Box) else np.int64)
        return cls(tuple(leaves(observations)), Leaf(None, actions.shape or (), dtype), environments)

    def __str__(self) -> str:
        seen = ", ".join(f"{leaf.name} {_form(leaf)}" for leaf in self.observation)
        return f"{seen}, action {_form(self.action)}, {self.environments} environments"

    @property
    def limit(self) -> int:
        """Bytes of the longest message."""
        rows = self.environments
        return max(_LEAST_LIMIT, self._question_bytes(rows, rows), self._answer_bytes(rows))

    # -- hello ------------------------------------------------------------------------------------

    def hello(self, actor: int, incarnation: int) -> bytes:
        return _HELLO.pack(_MAGIC, actor, incarnation) + str(self).encode()

    # -- questions --------------------------------------------------------------------------------

    def question(self, told: Told) -> bytes:
        finals = [] if told.finals is None else self.listed(told.finals)
        head = _HEAD.pack(told.number, told.start, len(told.flags), len(finals[0]) if finals else -1)
        return _packed(head, [*self.listed(told.obs), told.rewards, told.flags, *finals])

    def read_question(self, message: bytes, stream: Stream) -> Told:
        """What is told, its arrays on memory of their own. Malformed: it cannot have been an actor of this layout."""
        number, start, rows, finals = _head(message)
        if not 0 < rows <= self.environments - start or not -1 <= finals <= rows or number < 0:
            raise Malformed(f"a question of {rows} environments from {start} on, of {self.environments}")
        if len(message) != self._question_bytes(rows, finals):
            raise Malformed(f"a question of {len(message)} bytes, not {self._question_bytes(rows, finals)}")
        memory = bytearray(message)
        obs, at = self._tree(memory, _HEAD.size, rows)
        rewards = np.ndarray((rows,), np.float32, memory, at)
        at += _aligned(rewards.nbytes)
        flags = np.ndarray((rows,), np.uint8, memory, at)
        at += _aligned(flags.nbytes)
        last: Tree | None = None
        if finals >= 0:
            last, _ = self._tree(memory, at, finals)
            if finals != count_truncated(flags):
                raise Malformed(f"{finals} last observations of {count_truncated(flags)} truncated episodes")
        return Told(stream, start, number, obs, rewards, flags, last)

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, told: Told, answer: Answer) -> bytes:
        head = _HEAD.pack(told.number, told.start, len(answer.logp), answer.version)
        return _packed(head, [answer.actions, answer.logp])

    def read_answer(self, message: bytes) -> tuple[int, int, Answer]:
        """Of which environments it is, to which question, and what is to be done."""
        number, start, rows, version = _head(message)
        if len(message) != self._answer_bytes(rows):
            raise Malformed(f"an answer of {len(message)} bytes, not {self._answer_bytes(rows)}")
        memory = bytearray(message)
        actions = np.ndarray((rows, *self.action.shape), self.action.dtype, memory, _HEAD.size)
        logp = np.ndarray((rows,), np.float32, memory, _HEAD.size + _aligned(actions.nbytes))
        return start, number, Answer(actions, logp, version)

    # -- arrays -----------------------------------------------------------------------------------

    def listed(self, tree: Tree) -> list[Array]:
        """The arrays of an observation, in the order of its leaves."""
        return [tree] if isinstance(tree, np.ndarray) else [tree[str(leaf.key)] for leaf in self.observation]

    def _tree(self, memory: bytearray, at: int, rows: int) -> tuple[Tree, int]:
        """Views of `memory` as an observation of so many environments, and where it goes on after them."""
        parts: list[Array] = []
        for leaf in self.observation:
            parts.append(np.ndarray((rows, *leaf.shape), leaf.dtype, memory, at))
            at += _aligned(parts[-1].nbytes)
        return self.tree(parts), at

    def tree(self, parts: list[Array]) -> Tree:
        """The observation that has these arrays."""
        if self.observation[0].key is None:
            return parts[0]
        return {str(leaf.key): part for leaf, part in zip(self.observation, parts, strict=True)}

    def _tree_bytes(self, rows: int) -> int:
        return sum(leaf_bytes(leaf, rows) for leaf in self.observation)

    def _question_bytes(self, rows: int, finals: int) -> int:
        rest = _aligned(rows * np.dtype(np.float32).itemsize) + _aligned(rows)
        return _HEAD.size + self._tree_bytes(rows) + rest + self._tree_bytes(max(0, finals))

    def _answer_bytes(self, rows: int) -> int:
        return _HEAD.size + leaf_bytes(self.action, rows) + _aligned(rows * np.dtype(np.float32).itemsize)


def edge_name(invite: Invite) -> str:
    """What a stream is booked under: the edge that it stands for."""
    return f"{invite.name.rpartition('.')[0]}.act"


def read_hello(message: bytes) -> Hello:
    if len(message) < _HELLO.size or not message.startswith(_MAGIC):
        raise Malformed("a stream opens with a hello of this schema")
    _, actor, incarnation = _HELLO.unpack_from(message)
    return Hello(actor, incarnation, message[_HELLO.size :].decode(errors="replace"))


def _head(message: bytes) -> tuple[int, int, int, int]:
    if len(message) < _HEAD.size:
        raise Malformed(f"a message of {len(message)} bytes")
    number, start, rows, last = _HEAD.unpack_from(message)
    return number, start, rows, last


def _packed(head: bytes, arrays: Sequence[Array]) -> bytes:
    parts: list[Any] = [head]
    for array in arrays:
        parts += np.ascontiguousarray(array).data if array.size else b"", _PADDING[: -array.nbytes % _ALIGN]
    return b"".join(parts)


def _form(leaf: Leaf) -> str:
    # With its byte order: both ends take memory as it is.
    return f"{leaf.dtype.str}{list(leaf.shape)}"


def leaf_bytes(leaf: Leaf, rows: int) -> int:
    """What so many rows of an array take, with what fills them up."""
    return _aligned(rows * math.prod(leaf.shape) * leaf.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
