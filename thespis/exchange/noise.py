"""The table of noise that all workers of an evolution strategy read: sent as a seed, never as numbers."""

from __future__ import annotations

import numpy as np

from thespis.algorithms.updates.evolution import fill_noise
from thespis.core.messages import Place
from thespis.core.types import Array
from thespis.exchange.shared import Block, attach


class NoiseTable:
    """The table of whoever made it, in memory that other processes of the machine can map."""

    def __init__(self, length: int, seed: int) -> None:
        self._block = Block([("noise", "float32", length)])
        self.values: Array = self._block.arrays["noise"]
        fill_noise(self.values, seed)

    @property
    def place(self) -> Place:
        return self._block.place

    def close(self) -> None:
        self._block.close()


def find_noise(place: Place, seed: int) -> Array:
    """The table that is at `place`; on another machine, the same numbers drawn again."""
    try:
        return attach(place)["noise"]
    except OSError:
        ((_, _, length),) = place.plan
        table: Array = np.empty(length, np.float32)
        fill_noise(table, seed)
        return table
