"""The memory that an actor and an inference server on one machine share, and what they say to each other about it.

Every environment has a place of its own for what it sees and what it is to do. What it sees has two, used in turns: a
question may be written while what was told with the one before is still being read.

A message over their socket only says what is in the memory now, so it has a fixed length and no arrays. An actor that
expects its answer at any moment looks for it in the memory, and is sent no message: to be woken would take longer.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array, Tree
from thespis.envs.spaces import Leaf
from thespis.transport.inference_schema import Layout, Malformed, leaf_bytes

QUESTION = struct.Struct("<qIIiI")
# How often these environments have asked before, the first of them, how many they are, the rows of last observations
# (-1: none are told), and whether it was a usual step, whose flags are not told either.
ANSWER = struct.Struct("<qI")  # to which question, of which environments
REMINDER = struct.Struct("<I")  # from an actor that no longer looks: of which environments
LONGEST = 64
"""Bytes that hold any message."""

_WORD = 8
_NUMBER = Leaf(None, (), np.dtype(np.float32))  # a reward or a log-probability
_FLAG = Leaf(None, (), np.dtype(np.uint8))


class Seen(NamedTuple):
    """Where environments that ask together put a question: `[B, ...]`, and room for as many last observations."""

    obs: Tree
    rewards: Array
    flags: Array
    finals: Tree


class Place(NamedTuple):
    """All that environments which ask together have of a page. `seen`: for questions of even and of odd numbers.

    `nbytes`: of a question without last observations, and of its answer.
    """

    seen: tuple[Seen, Seen]
    actions: Array
    logp: Array
    nbytes: int


class Page:
    """Views of the memory of one stream.

    It begins with whole numbers: whether the actor looks at it, then for each environment how many questions were
    answered, and the packed version that acted last. They stand where the first of those is that ask together.
    """

    def __init__(self, layout: Layout, memory: mmap.mmap) -> None:
        self._layout, self._memory = layout, memory
        self._words = memoryview(memory).cast("q")
        self._versions = 1 + layout.environments
        self._places: dict[int, Place] = {}

    @staticmethod
    def size(layout: Layout) -> int:
        """Bytes that the environments of a stream need."""
        return _head(layout) + sum(leaf_bytes(leaf, layout.environments) for leaf in _leaves(layout))

    @property
    def looked_at(self) -> bool:
        """Whether the actor looks for its answer here, and needs no message."""
        return self._words[0] != 0

    @looked_at.setter
    def looked_at(self, looks: bool) -> None:
        self._words[0] = looks

    def answer(self, start: int, number: int, version: int) -> None:
        """Say that what is to be done stands here. It is the last thing to be written."""
        self._words[self._versions + start] = version
        self._words[1 + start] = number + 1

    def answered(self, start: int, number: int) -> bool:
        """Whether this question was."""
        return self._words[1 + start] == number + 1

    def version(self, start: int) -> int:
        """The packed version that acted last."""
        return self._words[self._versions + start]

    def place(self, start: int, rows: int) -> Place:
        """What belongs to `rows` environments from `start` on."""
        known = self._places.get(start)
        if known is None:
            known = self._places[start] = self._make(start, rows)
        if len(known.logp) != rows:
            raise Malformed(f"environments from {start} on were {len(known.logp)}, not {rows}")
        return known

    def _make(self, start: int, rows: int) -> Place:
        layout = self._layout
        if not 0 < rows <= layout.environments - start:
            raise Malformed(f"a question of {rows} environments from {start} on, of {layout.environments}")
        arrays = self._arrays(start, rows)

        def observation() -> Tree:
            return layout.tree([next(arrays) for _ in layout.observation])

        seen = [Seen(observation(), next(arrays), next(arrays), observation()) for _ in range(2)]
        actions, logp = arrays
        told = sum(leaf.nbytes for leaf in (*layout.listed(seen[0].obs), seen[0].rewards, actions, logp))
        return Place((seen[0], seen[1]), actions, logp, told + QUESTION.size + ANSWER.size)

    def _arrays(self, start: int, rows: int) -> Iterator[Array]:
        """The rows of these environments in every array of the page."""
        at, environments = _head(self._layout), self._layout.environments
        for leaf in _leaves(self._layout):
            whole: Array = np.ndarray((environments, *leaf.shape), leaf.dtype, self._memory, at)
            at += leaf_bytes(leaf, environments)
            yield whole[start : start + rows]


def _head(layout: Layout) -> int:
    return _WORD * (1 + 2 * layout.environments)


def _leaves(layout: Layout) -> Iterator[Leaf]:
    """The arrays of a page: twice what is seen, and once what is to be done."""
    for _ in range(2):
        yield from (*layout.observation, _NUMBER, _FLAG, *layout.observation)
    yield from (layout.action, _NUMBER)
