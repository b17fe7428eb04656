"""SumTree: a sum tree with batched operations."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array

_FAN = 4
_TOP = 1024


class SumTree:
    """Non-negative weights of `capacity` leaves, sampled in proportion to them.

    Binary only in the middle. Four leaves share a node, so the nodes take half the memory of the leaves. The top level
    has up to 1024 nodes, and a binary search in their running sum finds where to descend. float64: in float32 the sums
    of a million leaves drift from their leaves within an hour.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = np.zeros((-(-capacity // _FAN), _FAN), np.float64)
        self._bottom = 1 << max(0, len(self._leaves) - 1).bit_length()
        self._width = min(_TOP, self._bottom)
        self._depth = (self._bottom // self._width).bit_length() - 1
        # Node i has children 2i and 2i + 1; nodes above the top level, where i < width, are unused.
        self._nodes = np.zeros(2 * self._bottom, np.float64)
        self._ends = np.zeros(self._width + 1, np.float64)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._leaves.nbytes + self._nodes.nbytes + self._ends.nbytes

    def get(self, leaves: Array) -> Array:
        """The weights of `leaves`."""
        weights: Array = self._leaves.take(leaves)
        return weights

    def set(self, leaves: Array, weights: Array) -> None:
        """Set the weights of `leaves`; of a repeated leaf the last weight counts."""
        self._leaves.ravel()[leaves] = weights
        groups = leaves // _FAN
        nodes = groups + self._bottom
        # Recompute parent sums instead of adding a difference: rounding errors do not accumulate.
        self._nodes[nodes] = self._leaves[groups].sum(1)
        for _ in range(self._depth):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes.take(2 * nodes) + self._nodes.take(2 * nodes + 1)
        np.cumsum(self._nodes[self._width : 2 * self._width], out=self._ends[1:])

    def find(self, masses: Array) -> Array:
        """For each mass in [0, total), the leaf at which the running sum passes it; never a leaf of weight 0."""
        tops = np.minimum(np.searchsorted(self._ends[1:], masses, "right"), self._width - 1)
        masses = masses - self._ends[tops]
        nodes = tops + self._width
        # In place: this is called for every batch, and new arrays would take most of its time.
        weights, right = np.empty(len(masses), np.float64), np.empty(len(masses), np.bool_)
        for _ in range(self._depth):
            nodes += nodes
            self._nodes.take(nodes, out=weights, mode="clip")
            np.greater_equal(masses, weights, out=right)
            weights *= right
            masses -= weights
            nodes += right
        groups = np.minimum(nodes - self._bottom, len(self._leaves) - 1)
        found = _FAN * groups
        right[:] = True
        for column in self._leaves[groups].T[:-1]:
            right &= masses >= column
            masses -= column * right
            found += right
        return self._mended(found)

    def _mended(self, leaves: Array) -> Array:
        """Rounding can move a mass past the last leaf: use the last leaf before it with a weight."""
        for index in np.flatnonzero(self.get(leaves) == 0.0):
            leaves[index] = np.flatnonzero(self._leaves.ravel()[: leaves[index]])[-1]
        return leaves
