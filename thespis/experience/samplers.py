"""Which items of a replay are drawn, and how likely each was."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from thespis.core.types import Array
from thespis.experience.sum_tree import SumTree


class Sampler(Protocol):
    """Knows which slots hold items. Slots are int64 `[N]`."""

    @property
    def items(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def holds(self, slots: Array) -> Array: ...

    def add(self, slots: Array) -> None: ...

    def remove(self, slots: Array) -> None: ...

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        """Slots of `number` items, of which there is at least one; the same may come several times."""

    def weigh(self, slots: Array) -> Array:
        """Importance weights, float32 `[N]`, in a unit that all replays of one kind share."""

    def prioritise(self, slots: Array, priorities: Array) -> None: ...

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...


class Uniform:
    """Every item is as likely as any other."""

    def __init__(self, capacity: int) -> None:
        self._present = np.zeros(capacity, np.bool_)
        self._end = 0  # no slot from here on has ever held an item
        self.items = 0

    @property
    def nbytes(self) -> int:
        return self._present.nbytes

    def holds(self, slots: Array) -> Array:
        held: Array = self._present[slots]
        return held

    def add(self, slots: Array) -> None:
        if len(slots):
            self.items += len(slots)
            self._present[slots] = True
            self._end = max(self._end, int(slots.max()) + 1)

    def remove(self, slots: Array) -> None:
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self._present[slots]))
        self._present[slots] = False

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        # Nearly every slot holds an item, so trying again is cheaper than a list of those that do.
        drawn = rng.integers(0, self._end, number)
        while len(misses := np.flatnonzero(~self._present[drawn])):
            drawn[misses] = rng.integers(0, self._end, len(misses))
        return drawn

    def weigh(self, slots: Array) -> Array:
        return np.ones(len(slots), np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Priorities mean nothing here."""

    def state(self) -> dict[str, Array]:
        return {"present": self._present[: self._end].copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.add(np.flatnonzero(arrays["present"]))


class Fifo:
    """The oldest items first. None is drawn again before all others were, if so many are wanted at once.

    Looks at all slots for every draw, a millisecond for a million: items are few where each is removed once drawn.
    """

    def __init__(self, capacity: int) -> None:
        self._arrivals = np.full(capacity, _ABSENT, np.int64)
        self._added = 0
        self.items = 0

    @property
    def nbytes(self) -> int:
        return self._arrivals.nbytes

    def holds(self, slots: Array) -> Array:
        held: Array = self._arrivals[slots] != _ABSENT
        return held

    def add(self, slots: Array) -> None:
        self._arrivals[slots] = self._added + np.arange(len(slots))
        self._added += len(slots)
        self.items += len(slots)

    def remove(self, slots: Array) -> None:
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self.holds(slots)))
        self._arrivals[slots] = _ABSENT

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        there = np.flatnonzero(self._arrivals != _ABSENT)
        oldest: Array = there[np.argsort(self._arrivals[there])[:number]]
        return np.resize(oldest, number)

    def weigh(self, slots: Array) -> Array:
        return np.ones(len(slots), np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """Priorities mean nothing here."""

    def state(self) -> dict[str, Array]:
        return {"arrivals": self._arrivals.copy(), "added": np.array(self._added)}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._arrivals[:] = arrays["arrivals"]
        self._added = int(arrays["added"])
        self.items = int(np.count_nonzero(self._arrivals != _ABSENT))


class Prioritised:
    """Item i is drawn with probability P(i) = p_i^alpha / sum p^alpha (Schaul et al., 2016).

    Its importance weight is P(i)^-beta; whoever makes a batch divides by the largest in it, and so the number of items
    cancels. Draws are stratified: one from each of `number` equal shares of the total. An item that comes without a
    priority gets the highest seen so far.
    """

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._tree = SumTree(capacity)
        self._highest = 1.0
        self._capacity = capacity
        self.items = 0

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def holds(self, slots: Array) -> Array:
        held: Array = self._tree.get(slots) > 0.0
        return held

    def add(self, slots: Array) -> None:
        self.items += len(slots)
        self._tree.set(slots, np.full(len(slots), self._highest**self._alpha))

    def remove(self, slots: Array) -> None:
        slots = np.unique(slots)
        self.items -= int(np.count_nonzero(self.holds(slots)))
        self._tree.set(slots, np.zeros(len(slots)))

    def draw(self, number: int, rng: np.random.Generator) -> Array:
        shares = (np.arange(number) + rng.random(number)) * (self._tree.total / number)
        # Shuffled, because a caller may cut what it drew into several batches.
        return rng.permutation(self._tree.find(shares))

    def weigh(self, slots: Array) -> Array:
        weights: Array = (self._tree.get(slots) / self._tree.total) ** -self._beta
        return weights.astype(np.float32)

    def prioritise(self, slots: Array, priorities: Array) -> None:
        """`priorities`: |TD error| of each; a little is added, so that none is never drawn again."""
        priorities = np.asarray(priorities, np.float64) + _LEAST
        self._highest = max(self._highest, float(priorities.max(initial=0.0)))
        self._tree.set(slots, priorities**self._alpha)

    def state(self) -> dict[str, Array]:
        return {"weights": self._tree.get(np.arange(self._capacity)), "highest": np.array(self._highest)}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._tree.set(np.arange(self._capacity), arrays["weights"])
        self._highest = float(arrays["highest"])
        self.items = int(np.count_nonzero(arrays["weights"]))


_LEAST = 1e-6
_ABSENT = -1
