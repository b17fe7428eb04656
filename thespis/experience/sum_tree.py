"""A sum tree whose every operation works on a whole batch of leaves."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array

_FAN = 4
_TOP = 1024


class SumTree:
    """Non-negative weights of `capacity` leaves, drawn from in proportion to them.

    A binary tree in the middle only: four leaves share a node, so the nodes take half as much memory as the leaves; and
    the uppermost level that is kept has up to 1024 nodes, in whose running sum a binary search finds where to go down.
    float64: with float32 the sums of a million leaves drift away from their leaves within an hour.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = np.zeros((-(-capacity // _FAN), _FAN), np.float64)
        self._bottom = 1 << max(0, len(self._leaves) - 1).bit_length()
        self._width = min(_TOP, self._bottom)
        self._depth = (self._bottom // self._width).bit_length() - 1
        # Node i has children 2i and 2i + 1; those above the top level, where i < width, are not used.
        self._nodes = np.zeros(2 * self._bottom, np.float64)
        self._ends = np.zeros(self._width + 1, np.float64)

    @property
    def total(self) -> float:
        return float(self._ends[-1])

    @property
    def nbytes(self) -> int:
        return self._leaves.nbytes + self._nodes.nbytes + self._ends.nbytes

    def get(self, leaves: Array) -> Array:
        weights: Array = self._leaves.take(leaves)
        return weights

    def set(self, leaves: Array, weights: Array) -> None:
        """Give `leaves` new weights; of a leaf named twice the last counts."""
        self._leaves.ravel()[leaves] = weights
        groups = leaves // _FAN
        nodes = groups + self._bottom
        # Parents are added up anew, never adjusted by a difference: rounding does not accumulate.
        self._nodes[nodes] = self._leaves[groups].sum(1)
        for _ in range(self._depth):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes.take(2 * nodes) + self._nodes.take(2 * nodes + 1)
        np.cumsum(self._nodes[self._width : 2 * self._width], out=self._ends[1:])

    def find(self, masses: Array) -> Array:
        """For each mass in [0, total) the leaf at which the running sum of weights passes it; never one of weight 0."""
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
        """Rounding can leave a mass beyond all that is there: the last leaf before that weighs anything is meant."""
        for place in np.flatnonzero(self.get(leaves) == 0.0):
            leaves[place] = np.flatnonzero(self._leaves.ravel()[: leaves[place]])[-1]
        return leaves
