"""A block of named arrays in memory that several processes of one machine map.

The block is a memfd of the process that creates it; other processes open it through /proc. It has no name in any file
system, and the kernel frees it with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref

import numpy as np

from thespis.core.opaque import aligned
from thespis.core.payloads import BlockAddress, BlockLayout
from thespis.core.types import Array


class SharedBlock:
    """A block that this process created. It exists until `close`, or until the process ends."""

    def __init__(self, plan: BlockLayout) -> None:
        name = f"thespis-{secrets.token_hex(8)}"
        self._descriptor = os.memfd_create(name)
        os.ftruncate(self._descriptor, _size(plan))
        # A role killed in the simulation does not close its block.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.address = BlockAddress(os.getpid(), self._descriptor, name, plan)
        self.arrays = _map(self._descriptor, plan)
        _OWN_BLOCKS[name] = self

    def close(self) -> None:
        """Close the descriptor; other processes can no longer attach."""
        self._close()


_OWN_BLOCKS: weakref.WeakValueDictionary[str, SharedBlock] = weakref.WeakValueDictionary()
"""Blocks of this process. `attach` does not map them again: a thousand simulated workers would exhaust descriptors."""


def attach(address: BlockAddress) -> dict[str, Array]:
    """Map the arrays of another process's block. Raises OSError if the block is on another machine or closed."""
    own = _OWN_BLOCKS.get(address.name)
    if own is not None:
        return own.arrays
    path = f"/proc/{address.process}/fd/{address.descriptor}"
    # On another machine the same pid and descriptor may refer to an unrelated file.
    if os.readlink(path) != f"/memfd:{address.name} (deleted)":
        raise FileNotFoundError(f"no block {address.name} on this machine")
    descriptor = os.open(path, os.O_RDWR)
    try:
        return _map(descriptor, address.plan)
    finally:
        os.close(descriptor)


def _map(descriptor: int, plan: BlockLayout) -> dict[str, Array]:
    memory = mmap.mmap(descriptor, _size(plan))
    arrays, start = {}, 0
    for name, kind, length in plan:
        arrays[name] = np.frombuffer(memory, kind, length, start)
        start += aligned(arrays[name].nbytes)
    return arrays


def _size(plan: BlockLayout) -> int:
    return sum(aligned(np.dtype(kind).itemsize * length) for _, kind, length in plan)
