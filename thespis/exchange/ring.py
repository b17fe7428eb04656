"""A ring of learners that add up a vector: a process group of torch.distributed, over gloo."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from thespis.core.payloads import Member

Addresses = dict[str, bytes]
"""What the members of a ring must know to connect to each other, by the keys of torch.distributed."""
_MEMBER = struct.Struct("<qq")


def ring_number(members: Sequence[Member]) -> int:
    """A number that identifies the ring of these members, in this order."""
    return zlib.crc32(b"".join(_MEMBER.pack(*member) for member in members)) + 1


class Ring:
    """Connections between equal learners.

    It is never the default process group, so user code may have one. Its listening socket is bound to `host` alone.
    `close` ends its connections, and thereby the wait of every other member.
    """

    def __init__(
        self,
        members: Sequence[Member],
        rank: int,
        host: str,
        timeout: float,
        swap: Callable[[Addresses], Addresses],
    ) -> None:
        """Connect to all members, or raise `RuntimeError`.

        `timeout`: seconds without progress after which the ring fails. `swap`: sends the addresses of this member to
        all others, and returns those of all.
        """
        self.number = ring_number(members)
        self._size = len(members)
        self._store = _AddressStore(swap)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=timeout)
        self._group: dist.ProcessGroupGloo | None = dist.ProcessGroupGloo(self._store, rank, self._size, options)

    def add_up(self, vector: Tensor) -> None:
        """Replace a vector by its sum over all members, equal to the bit; raises `RuntimeError` if one is gone."""
        assert self._group is not None
        self._group.allreduce([vector]).wait()  # type: ignore[attr-defined]

    def close(self) -> None:
        """End all connections. No thread may be in `add_up`."""
        self._group = None  # errors may still refer to this object, so its own end would be too late

    def sent_bytes(self, vector: Tensor) -> int:
        """Bytes that each member sends to add up a vector: nearly twice the vector, however many members there are."""
        return 2 * (self._size - 1) * vector.nbytes // self._size


class _AddressStore(dist.Store):  # type: ignore[name-defined, misc]
    """The store in which torch.distributed looks up addresses: a dictionary, filled by one message to all members."""

    def __init__(self, swap: Callable[[Addresses], Addresses]) -> None:
        super().__init__()
        self._swap, self._known = swap, Addresses()

    def set(self, key: str, value: bytes | str) -> None:
        """Note an address of this member."""
        self._known[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return an address; the first one of another member sends this member's own."""
        self.wait([key])
        return self._known[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until these addresses are known."""
        if any(key not in self._known for key in keys):
            self._known |= self._swap(self._known)
        missing = [key for key in keys if key not in self._known]
        if missing:
            raise RuntimeError(f"no learner sent the address {missing[0]!r}")
