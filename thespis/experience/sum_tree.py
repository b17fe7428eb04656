"""A sum tree whose every operation works on a whole batch of leaves."""

from __future__ import annotations

import numpy as np

from thespis.types import Array


class SumTree:
    """Non-negative weights of `capacity` leaves, drawn from in proportion to them in O(log capacity).

    float64: with float32 the sums of a million leaves drift away from their leaves within an hour.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._depth = self._leaves.bit_length() - 1
        # Node i has children 2i and 2i + 1; the root is 1, the leaves stand at the end.
        self._nodes = np.zeros(2 * self._leaves, np.float64)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        return self._nodes.nbytes

    def get(self, leaves: Array) -> Array:
        weights: Array = self._nodes[leaves + self._leaves]
        return weights

    def set(self, leaves: Array, weights: Array) -> None:
        """Give `leaves` new weights; of a leaf named twice the last counts."""
        nodes = leaves + self._leaves
        self._nodes[nodes] = weights
        for _ in range(self._depth):
            # Parents are added up anew, never adjusted by a difference: rounding does not accumulate.
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, masses: Array) -> Array:
        """For each mass in [0, total) the leaf at which the running sum of weights passes it; never one of weight 0."""
        masses = np.array(masses, np.float64)
        nodes = np.ones(len(masses), np.int64)
        for _ in range(self._depth):
            left = 2 * nodes
            weight = self._nodes[left]
            # Rounding may leave a mass beyond what is there: then the right child is empty, and left is meant.
            right = (masses >= weight) & (self._nodes[left + 1] > 0.0)
            masses -= weight * right
            nodes = left + right
        return nodes - self._leaves
