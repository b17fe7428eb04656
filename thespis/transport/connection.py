"""How messages cross a process boundary: control over a Unix socket, large arrays through shared memory.

A frame is a header, a pickle, and the arrays the pickle refers to. Small arrays follow the pickle in the socket; large
ones lie in the sender's arena, a memfd the supervisor made, and only their offsets travel. The receiver copies
them out at once, so a block lives as long as one call and no array is ever shared between two roles.

A message like one that went before (see schema_cache.py) has no pickle, only its numbers.

Pickle is safe here: both ends are processes of this run, joined by a socketpair that has no name.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from thespis.core.opaque import aligned, dump, load
from thespis.core.types import Array
from thespis.transport.schema_cache import Form, Forms, take_apart

_HEADER = struct.Struct("<QIIqi")
# Pickle bytes, array count, releases count, arena block (-1: arrays are inline), form (-1: it has none). Without a
# pickle the message is of a form that is known, and the numbers of the message stand in its place.
_NUMBER = struct.Struct("<Q")
_INLINE = 16 * 1024
"""Below this many bytes of arrays a second copy is cheaper than the bookkeeping of shared memory."""
_JOINED = 256 * 1024
"""Up to this many bytes arrays are joined first and copied into shared memory together: one copy more, in one go."""
_MOST_AT_ONCE = 64 * 1024
"""Bytes read from a socket in one go."""


Received = Callable[["Connection", Any, int], None]
"""What takes in a message: the line it came on, the message, and how many bytes it took."""


class Arena:
    """A sender's shared memory: blocks are allocated first-fit and freed when the receiver has copied them.

    The file is sparse, so its size is only an upper bound: pages exist once they were written.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.size)
        self._view = np.frombuffer(self._memory, dtype=np.uint8)
        self._blocks: dict[int, int] = {}

    def store(self, buffers: list[memoryview]) -> int:
        """Copy `buffers`, each aligned, into one block; return its offset, -1 if there is no room."""
        ends = np.cumsum([aligned(buffer.nbytes) for buffer in buffers]).tolist()
        arrays = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
        return self.place(ends[-1], arrays, [0, *ends[:-1]])

    def place(self, length: int, arrays: list[Array], offsets: list[int]) -> int:
        """Copy arrays to these offsets of one block; return where it is, -1 if there is no room."""
        start = self._reserve(length)
        if start >= 0:
            for array, offset in zip(arrays, offsets, strict=True):
                at = start + offset
                self._view[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        return start

    def put(self, data: bytes) -> int:
        """Copy `data` into a block; return where it is, -1 if there is no room."""
        start = self._reserve(len(data))
        if start >= 0:
            self._memory[start : start + len(data)] = data
        return start

    def free(self, start: int) -> None:
        self._blocks.pop(start, None)

    def _reserve(self, length: int) -> int:
        """Take the first block that is long enough; return where it is, -1 if there is none."""
        length, position = aligned(length), 0
        for start in sorted(self._blocks):
            if start - position >= length:
                break
            position = start + self._blocks[start]
        if self.size - position < length:
            return -1
        self._blocks[position] = length
        return position


class PeerArena:
    """The other side's arena, read only."""

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self._view = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), dtype=np.uint8)

    def copy(self, start: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._view[start : start + length].copy()


class Connection:
    """One socket between two processes. `send` never waits; `received` gets (line, message, bytes it took).

    What is sent leaves at once. What comes is taken in when the event loop finds it, or before, by `take`.
    """

    def __init__(
        self,
        sock: socket.socket,
        arena: Arena,
        peer: PeerArena,
        received: Received,
        lost: Callable[[Connection], None],
    ) -> None:
        self._arena, self._peer, self._received, self._lost = arena, peer, received, lost
        self._releases: list[int] = []
        self._lent: set[int] = set()
        self._forms = Forms()
        self._arrived = memoryview(bytearray(_MOST_AT_ONCE))
        self._begun = bytearray()  # of a frame that has not come whole yet
        self._unsent = bytearray()
        self._taking = False
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._gone = False
        sock.setblocking(False)
        self._arrival = select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._loop.add_reader(sock, self.take)

    def send(self, message: Any) -> int:
        """Send without waiting; return how many bytes travelled. To a peer that is gone, nothing happens."""
        if self._gone:
            return 0
        parts = take_apart(message)
        form = self._forms.known(parts) if parts is not None else None
        if parts is not None and form is not None:
            with suppress(struct.error):  # a number that is too large: Python's know no limit
                return self._write_like(form, form.numbers.pack(*parts.numbers), parts.arrays)
        body, buffers = dump(message)
        sizes = [buffer.nbytes for buffer in buffers]
        block = self._arena.store(buffers) if sum(sizes) > _INLINE else -1
        name = self._forms.name(parts, message) if parts is not None and form is None else -1
        head = _HEADER.pack(len(body), len(sizes), len(self._releases), block, name)
        numbers = b"".join(map(_NUMBER.pack, (*sizes, *self._releases)))
        return self._write([head, numbers, body], buffers, sum(sizes), block)

    def _write_like(self, form: Form, numbers: bytes, arrays: list[Array]) -> int:
        """Send what is new in a message of a form that the other side knows."""
        block = self._arena.place(form.size, arrays, form.offsets) if form.size > _JOINED else -1
        inline = form.joined(arrays) if block < 0 else b""
        if _INLINE < form.size <= _JOINED:
            block = self._arena.put(inline)
        head = _HEADER.pack(0, 0, len(self._releases), block, form.number)
        releases = b"".join(map(_NUMBER.pack, self._releases)) if self._releases else b""
        return self._write([head, releases, numbers], [inline], form.size, block)

    def _write(self, parts: list[bytes], arrays: list[Any], size: int, block: int) -> int:
        self._releases.clear()
        if block >= 0:
            self._lent.add(block)
        total = sum(map(len, parts)) + size * (block < 0)
        self._put(b"".join((_NUMBER.pack(total), *parts, *(arrays if block < 0 else ()))))
        return total + size * (block >= 0)

    def _put(self, data: bytes) -> None:
        """Send what the socket takes; the rest follows when it takes more."""
        if self._unsent:
            self._unsent += data
            return
        sent = self._offer(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._socket, self._put_more)

    def _put_more(self) -> None:
        del self._unsent[: self._offer(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _offer(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the other side is gone, which is noticed where its end is read

    def take(self, seconds: float = 0.0) -> None:
        """Take in what has come. With `seconds`: if nothing has, wait that long for something."""
        if self._taking or self._gone:
            return
        came = self._read()
        if came is None and seconds and self._arrival.poll(1e3 * seconds):
            came = self._read()
        if came is None:
            return
        if not came:
            self._end()
            return
        self._taking = True
        try:
            self._take_in(bytes(self._arrived[:came]))
        finally:
            self._taking = False

    def _read(self) -> int | None:
        """How many bytes have come; 0 at the end of the line, None if nothing has."""
        try:
            return self._socket.recv_into(self._arrived)
        except BlockingIOError:
            return None
        except OSError:
            return 0

    def _take_in(self, data: bytes) -> None:
        if self._begun:
            self._begun += data
            size = len(self._begun)
            if size < _NUMBER.size or size < _NUMBER.size + _NUMBER.unpack_from(self._begun)[0]:
                return
            data = bytes(self._begun)
            self._begun.clear()
        start, size = 0, len(data)
        while size - start >= _NUMBER.size:
            end = start + _NUMBER.size + _NUMBER.unpack_from(data, start)[0]
            if end > size:
                break
            message, nbytes = self._decode(data if end - start == size else data[start:end])
            start = end
            self._received(self, message, nbytes)
        self._begun += memoryview(data)[start:]

    def close(self) -> None:
        """Leave the other side; `lost` is told, as when the other side leaves."""
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for block in self._lent:
            self._arena.free(block)
        self._lent.clear()
        self._lost(self)

    def _decode(self, frame: bytes) -> tuple[Any, int]:
        """The message in a frame, which begins with its length."""
        body_length, arrays, releases, block, form = _HEADER.unpack_from(frame, _NUMBER.size)
        at = _NUMBER.size + _HEADER.size
        numbers = [_NUMBER.unpack_from(frame, at + i * _NUMBER.size)[0] for i in range(arrays + releases)]
        at += len(numbers) * _NUMBER.size
        sizes = numbers[:arrays]
        for lent in numbers[arrays:]:
            self._lent.discard(lent)
            self._arena.free(lent)
        if not body_length:
            return self._decode_like(self._forms[form], frame, at, block)
        body = memoryview(frame)[at : at + body_length]
        at += body_length
        buffers: list[Any] = []
        position = block
        for size in sizes:
            if block < 0:
                buffers.append(bytearray(frame[at : at + size]))
                at += size
            else:
                buffers.append(self._peer.copy(position, size))
                position += aligned(size)
        message = load(body, buffers)
        if form >= 0:
            self._forms.learn(form, message)
        if block >= 0:
            # Copied out: say so with the next frame that goes the other way anyway.
            self._releases.append(block)
        return message, len(frame) - _NUMBER.size + sum(sizes) * (block >= 0)

    def _decode_like(self, form: Form, frame: bytes, at: int, block: int) -> tuple[Any, int]:
        start = at + form.numbers.size
        memory: Any = bytearray(frame[start:]) if block < 0 else self._peer.copy(block, form.size)
        if block >= 0:
            self._releases.append(block)
        return form.make(frame, at, memory), len(frame) - _NUMBER.size + form.size * (block >= 0)
