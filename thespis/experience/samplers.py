"""Samplers: choose which items of a replay are drawn, and compute their importance weights."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from thespis.core.types import Array
from thespis.experience.sum_tree import SumTree


class Sampler(Protocol):
    """Knows which slots hold items. Slots are int64 `[N]`."""

    @property
    def items(self) -> int:
        """Number of items."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def holds(self, slots: Array) -> Array:
        """Which slots hold items: bool `[N]`."""

    def add(self, slots: Array) -> None:
        """Add items at `slots`."""

    def remove(self, slots: Array) -> None:
        """Remove the items at `slots`, if any."""

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        """Draw `number` slots, with repetition. At least one item must be stored."""

    def weigh(self, slots: Array) -> Array:
        """Importance weights, float32 `[N]`, on a scale that all shards and replays of one kind share."""

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Set priorities of the items at `slots`."""

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""


class Uniform:
    """Draws every item with equal probability."""

    def __init__(self, capacity: int) -> None:
        self._present = np.zeros(capacity, np.bool_)
        self._end = 0  # no slot from here on ever held an item
        self.items = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._present.nbytes

    def holds(self, slots: Array) -> Array:
        """Which slots hold items: bool `[N]`."""
        held: Array = self._present[slots]
        return held

    def add(self, slots: Array) -> None:
        """Add items at `slots`."""
        if len(slots):
            self.items += len(slots)
            self._present[slots] = True
            self._end = max(self._end, int(slots.max()) + 1)

    def remove(self, slots: Array) -> None:
        """Remove the items at `slots`, if any."""
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self._present[slots]))
        self._present[slots] = False

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        """Draw `number` slots uniformly."""
        # Nearly every slot holds an item, so redrawing is cheaper than a list of occupied slots.
        drawn = rng.integers(0, self._end, number)
        while len(misses := np.flatnonzero(~self._present[drawn])):
            drawn[misses] = rng.integers(0, self._end, len(misses))
        return drawn

    def weigh(self, slots: Array) -> Array:
        """Ones: all items are equally likely."""
        return np.ones(len(slots), np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Ignore priorities."""

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""
        return {"present": self._present[: self._end].copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self.add(np.flatnonzero(arrays["present"]))


class Fifo:
    """Draws the oldest items first. A draw of more items than are stored repeats them.

    Every draw scans all slots, about a millisecond per million: items are few if each is removed once drawn.
    """

    def __init__(self, capacity: int) -> None:
        self._arrivals = np.full(capacity, _ABSENT, np.int64)
        self._added = 0
        self.items = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._arrivals.nbytes

    def holds(self, slots: Array) -> Array:
        """Which slots hold items: bool `[N]`."""
        held: Array = self._arrivals[slots] != _ABSENT
        return held

    def add(self, slots: Array) -> None:
        """Add items at `slots`."""
        self._arrivals[slots] = self._added + np.arange(len(slots))
        self._added += len(slots)
        self.items += len(slots)

    def remove(self, slots: Array) -> None:
        """Remove the items at `slots`, if any."""
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self.holds(slots)))
        self._arrivals[slots] = _ABSENT

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        """The slots of the `number` oldest items."""
        there = np.flatnonzero(self._arrivals != _ABSENT)
        oldest: Array = there[np.argsort(self._arrivals[there])[:number]]
        return np.resize(oldest, number)

    def weigh(self, slots: Array) -> Array:
        """Ones: draws are deterministic."""
        return np.ones(len(slots), np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Ignore priorities."""

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""
        return {"arrivals": self._arrivals.copy(), "added": np.array(self._added)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self._arrivals[:] = arrays["arrivals"]
        self._added = int(arrays["added"])
        self.items = int(np.count_nonzero(self._arrivals != _ABSENT))


class Prioritised:
    """Draws item i with probability P(i) = p_i^alpha / sum p^alpha (Schaul et al., 2016).

    Its importance weight is P(i)^-beta. The source of a batch divides weights by the batch's largest, so the number of
    items cancels. Draws are stratified: one from each of `number` equal shares of the total. A new item gets the
    highest priority seen so far.
    """

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._tree = SumTree(capacity)
        self._highest = 1.0
        self._capacity = capacity
        self.items = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._tree.nbytes

    def holds(self, slots: Array) -> Array:
        """Which slots hold items: bool `[N]`."""
        held: Array = self._tree.get(slots) > 0.0
        return held

    def add(self, slots: Array) -> None:
        """Add items at `slots`."""
        self.items += len(slots)
        self._tree.set(slots, np.full(len(slots), self._highest**self._alpha))

    def remove(self, slots: Array) -> None:
        """Remove the items at `slots`, if any."""
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self.holds(slots)))
        self._tree.set(slots, np.zeros(len(slots)))

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        """Draw `number` slots in proportion to their priorities, in random order."""
        shares = (np.arange(number) + rng.random(number)) * (self._tree.total / number)
        # Shuffled, because a caller may cut one draw into several batches.
        return rng.permutation(self._tree.find(shares))

    def weigh(self, slots: Array) -> Array:
        """P(i)^-beta, float32 `[N]`."""
        weights: Array = (self._tree.get(slots) / self._tree.total) ** -self._beta
        return weights.astype(np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Set priorities from |TD error|; a small constant keeps every item drawable."""
        priorities = np.asarray(priorities, np.float64) + _LEAST
        self._highest = max(self._highest, float(priorities.max(initial=0.0)))
        self._tree.set(slots, priorities**self._alpha)

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""
        return {"weights": self._tree.get(np.arange(self._capacity)), "highest": np.array(self._highest)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self._tree.set(np.arange(self._capacity), arrays["weights"])
        self._highest = float(arrays["highest"])
        self.items = int(np.count_nonzero(arrays["weights"]))


_LEAST = 1e-6
_ABSENT = -1
