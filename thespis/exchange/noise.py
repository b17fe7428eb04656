"""The noise table that all workers of an evolution strategy read: shared on one machine, redrawn on others."""

from __future__ import annotations

import numpy as np

from thespis.algorithms.updates.evolution import fill_noise
from thespis.core.payloads import BlockAddress
from thespis.core.types import Array
from thespis.exchange.shared import SharedBlock, attach


class NoiseTable:
    """The noise table of this process, in memory that other processes of the machine can map."""

    def __init__(self, length: int, seed: int) -> None:
        self._block = SharedBlock([("noise", "float32", length)])
        self.values: Array = self._block.arrays["noise"]
        fill_noise(self.values, seed)

    @property
    def address(self) -> BlockAddress:
        """The address of the shared block, for `find_noise`."""
        return self._block.address

    def close(self) -> None:
        """Release the shared block."""
        self._block.close()


def find_noise(address: BlockAddress, seed: int) -> Array:
    """Map the table at `address`; on another machine, draw the same numbers again from the seed."""
    try:
        return attach(address)["noise"]
    except OSError:
        ((_, _, length),) = address.plan
        table: Array = np.empty(length, np.float32)
        fill_noise(table, seed)
        return table
