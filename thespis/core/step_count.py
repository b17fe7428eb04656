"""The run's count of environment steps, shared by all processes, so that no role steps beyond the budget."""

from __future__ import annotations

import mmap
import os

import numpy as np

from thespis.core.types import Array

_NO_LIMIT = -1


class StepCount:
    """Environment steps of all processes since the run was started or resumed, and their limit.

    int64: [limit, or -1][steps of process 0][steps of process 1]... Each process writes only its own entry, so no lock
    is needed; readers sum the entries. The steps of a killed process stay in its entry.
    """

    def __init__(self, numbers: Array, process: int) -> None:
        self._numbers = numbers
        self._mine = numbers.data[1 + process : 2 + process]  # adding to a memoryview is twice as fast as to an array

    @classmethod
    def single_process(cls, limit: int | None) -> StepCount:
        """Return a count for roles that all run in this process."""
        return cls(np.array([_NO_LIMIT if limit is None else limit, 0], np.int64), 0)

    @classmethod
    def map(cls, descriptor: int, process: int) -> StepCount:
        """Return the count of `process` in memory that `shared_steps` allocated."""
        return cls(np.frombuffer(mmap.mmap(descriptor, 0), np.int64), process)

    def add(self, steps: int) -> None:
        """Add steps of this process."""
        self._mine[0] += steps

    def of(self, process: int) -> int:
        """Return the steps of one process."""
        return int(self._numbers[1 + process])

    @property
    def exhausted(self) -> bool:
        """Whether the steps of all processes have reached the limit."""
        limit = int(self._numbers[0])
        return limit != _NO_LIMIT and int(self._numbers[1:].sum()) >= limit


def shared_steps(limit: int | None, processes: int) -> int:
    """Allocate shared memory for the counts of `processes` processes, and return its file descriptor."""
    descriptor = os.memfd_create("thespis-steps", os.MFD_CLOEXEC)
    os.write(descriptor, np.array([_NO_LIMIT if limit is None else limit, *[0] * processes], np.int64).tobytes())
    return descriptor
