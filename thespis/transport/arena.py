"""The shared memory of one process, in which it leaves large arrays for the receivers of its messages."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from thespis.core.opaque import aligned
from thespis.core.types import Array


class Arena:
    """A sender's shared memory. Blocks are allocated first-fit and freed when nothing uses them any more.

    The sender uses a block until it drops the array that it allocated there, and each receiver until it has copied or
    dropped its array. The file is sparse, so its size is only an upper bound: the kernel allocates pages when they are
    written.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.size)
        self._view = np.frombuffer(self._memory, dtype=np.uint8)
        self._start = self._view.ctypes.data
        self._blocks: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._dropped: deque[int] = deque()  # any thread may drop an array

    def allocate(self, length: int) -> Array | None:
        """Return `length` bytes of a new block, or None if the arena is full. The array and its views keep the block.

        Receivers read the array in place, so nothing may write to it after it was sent.
        """
        start = self._reserve(length)
        if start < 0:
            return None
        array = np.frombuffer(self._memory, np.uint8, length, start)
        weakref.finalize(array, self._dropped.append, start).atexit = False
        return array

    def share(self, array: Array) -> int:
        """Add a user to the block of an allocated array. Return its offset, or -1 if the array is not in this arena."""
        start = array.ctypes.data - self._start
        if start not in self._blocks:
            return -1
        self._users[start] += 1
        return start

    def store(self, buffers: list[memoryview]) -> int:
        """Copy `buffers`, each aligned, to a new block. Return its offset, or -1 if the arena is full."""
        ends = np.cumsum([aligned(buffer.nbytes) for buffer in buffers]).tolist()
        arrays = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
        return self.store_at(ends[-1], arrays, [0, *ends[:-1]])

    def store_at(self, length: int, arrays: list[Array], offsets: list[int]) -> int:
        """Copy arrays to `offsets` of a new block. Return the block's offset, or -1 if the arena is full."""
        start = self._reserve(length)
        if start >= 0:
            for array, offset in zip(arrays, offsets, strict=True):
                at = start + offset
                self._view[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        return start

    def store_bytes(self, data: bytes) -> int:
        """Copy `data` to a new block. Return its offset, or -1 if the arena is full."""
        start = self._reserve(len(data))
        if start >= 0:
            self._memory[start : start + len(data)] = data
        return start

    def free(self, start: int) -> None:
        """Remove a user of the block at an offset; the last one frees it."""
        self._users[start] -= 1
        if not self._users[start]:
            del self._users[start], self._blocks[start]

    def _reserve(self, length: int) -> int:
        """Allocate the first gap of sufficient length. Return its offset, or -1 if there is none."""
        while self._dropped:
            self.free(self._dropped.popleft())
        length, position = aligned(length), 0
        for start in sorted(self._blocks):
            if start - position >= length:
                break
            position = start + self._blocks[start]
        if self.size - position < length:
            return -1
        self._blocks[position], self._users[position] = length, 1
        return position


class PeerArena:
    """The peer's arena, read-only."""

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        self._view = np.frombuffer(self._memory, dtype=np.uint8)

    def copy(self, start: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Copy `length` bytes from offset `start`."""
        return self._view[start : start + length].copy()

    def view(self, start: int, length: int, dropped: Callable[[int], None]) -> Array:
        """Return `length` bytes from offset `start` in place, read-only.

        `dropped` is called with `start` when the array and its views are gone, perhaps in another thread.
        """
        array = np.frombuffer(self._memory, np.uint8, length, start)
        weakref.finalize(array, dropped, start).atexit = False
        return array
