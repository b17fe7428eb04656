"""A block of memory that several processes of one machine map: named arrays, one after the other.

It is a memfd of the process that made it, opened by the others through /proc: it has no name in any file system, and
the kernel takes it back with the last process that maps it, however that ended.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref

import numpy as np

from thespis.core.messages import Place, Plan
from thespis.core.opaque import aligned
from thespis.core.types import Array


class Block:
    """The arrays of a block that this process made. It lives until `close`, or until the process ends."""

    def __init__(self, plan: Plan) -> None:
        name = f"thespis-{secrets.token_hex(8)}"
        self._descriptor = os.memfd_create(name)
        os.ftruncate(self._descriptor, _size(plan))
        # A role that is killed in the simulation does not close what it has.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.place = Place(os.getpid(), self._descriptor, name, plan)
        self.arrays = _map(self._descriptor, plan)
        _MINE[name] = self

    def close(self) -> None:
        self._close()


_MINE: weakref.WeakValueDictionary[str, Block] = weakref.WeakValueDictionary()
"""Blocks of this process, which need not be mapped again: a thousand simulated workers would run out of descriptors."""


def attach(place: Place) -> dict[str, Array]:
    """The arrays of another process's block, the very same memory. OSError: it is not on this machine, or gone."""
    mine = _MINE.get(place.name)
    if mine is not None:
        return mine.arrays
    path = f"/proc/{place.process}/fd/{place.descriptor}"
    # On another machine these numbers may be those of somebody else's file.
    if os.readlink(path) != f"/memfd:{place.name} (deleted)":
        raise FileNotFoundError(f"there is no block {place.name} on this machine")
    descriptor = os.open(path, os.O_RDWR)
    try:
        return _map(descriptor, place.plan)
    finally:
        os.close(descriptor)


def _map(descriptor: int, plan: Plan) -> dict[str, Array]:
    memory = mmap.mmap(descriptor, _size(plan))
    arrays, start = {}, 0
    for name, kind, length in plan:
        arrays[name] = np.frombuffer(memory, kind, length, start)
        start += aligned(arrays[name].nbytes)
    return arrays


def _size(plan: Plan) -> int:
    return sum(aligned(np.dtype(kind).itemsize * length) for _, kind, length in plan)
