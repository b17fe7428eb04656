"""A connection between two processes: control data over a Unix socket, large arrays through shared memory.

A frame is a header, a pickle, and the arrays of the pickle. Small arrays follow the pickle in the socket. Large arrays
are written to the sender's arena, a memfd, and the frame holds only their offset. The receiver copies them at once, so
a block is in use for one call and no array is ever shared between two roles.

A message with a known schema (see schema_cache.py) has no pickle, only its numbers and arrays.

Pickle is safe here: both ends are processes of this run, connected by a socketpair or after a handshake.
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

from thespis.core.opaque import aligned, dump_message, load_message
from thespis.core.types import Array
from thespis.transport.schema_cache import MessageSchema, SchemaCache, flatten_message

_HEADER = struct.Struct("<QIIqi")
# Pickle bytes, array count, release count, arena block (-1: arrays are inline), schema (-1: none). If there are no
# pickle bytes, the schema is known and the numbers of the message replace the pickle.
_NUMBER = struct.Struct("<Q")
_INLINE_BYTES = 16 * 1024
"""Up to this many bytes, a second copy of the arrays is cheaper than allocating shared memory."""
_JOIN_BYTES = 256 * 1024
"""Up to this many bytes, arrays are joined first and copied to shared memory at once: one more copy, fewer calls."""
_READ_BYTES = 64 * 1024
"""Maximum size of one read from a socket."""


Received = Callable[["Connection", Any, int], None]
"""Handler of a received message: `(connection, message, bytes transferred)`."""


class Arena:
    """A sender's shared memory. Blocks are allocated first-fit and freed when the receiver has copied them.

    The file is sparse, so its size is only an upper bound: the kernel allocates pages when they are written.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.size)
        self._view = np.frombuffer(self._memory, dtype=np.uint8)
        self._blocks: dict[int, int] = {}

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
        """Free the block at an offset."""
        self._blocks.pop(start, None)

    def _reserve(self, length: int) -> int:
        """Allocate the first gap of sufficient length. Return its offset, or -1 if there is none."""
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
    """The peer's arena, read-only."""

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self._view = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), dtype=np.uint8)

    def copy(self, start: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Copy `length` bytes from offset `start`."""
        return self._view[start : start + length].copy()


class Connection:
    """One socket between two processes. `send` never blocks; `received` handles each message.

    The event loop reads the socket when it becomes readable; `poll` reads it earlier.
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
        self._in_use: set[int] = set()
        self._schemas = SchemaCache()
        self._input = memoryview(bytearray(_READ_BYTES))
        self._partial = bytearray()  # an incomplete frame
        self._unsent = bytearray()
        self._polling = False
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._closed = False
        sock.setblocking(False)
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._loop.add_reader(sock, self.poll)

    def send(self, message: Any) -> int:
        """Send without blocking and return the number of bytes transferred. Do nothing if the peer is gone."""
        if self._closed:
            return 0
        parts = flatten_message(message)
        schema = self._schemas.find(parts) if parts is not None else None
        if parts is not None and schema is not None:
            with suppress(struct.error):  # an integer of more than 64 bits
                return self._write_known(schema, schema.numbers.pack(*parts.numbers), parts.arrays)
        body, buffers = dump_message(message)
        sizes = [buffer.nbytes for buffer in buffers]
        block = self._arena.store(buffers) if sum(sizes) > _INLINE_BYTES else -1
        added = self._schemas.register(parts, message) if parts is not None and schema is None else -1
        head = _HEADER.pack(len(body), len(sizes), len(self._releases), block, added)
        numbers = b"".join(map(_NUMBER.pack, (*sizes, *self._releases)))
        return self._write([head, numbers, body], buffers, sum(sizes), block)

    def _write_known(self, schema: MessageSchema, numbers: bytes, arrays: list[Array]) -> int:
        """Send the numbers and arrays of a message whose schema the peer knows."""
        block = self._arena.store_at(schema.size, arrays, schema.offsets) if schema.size > _JOIN_BYTES else -1
        inline = schema.join(arrays) if block < 0 else b""
        if _INLINE_BYTES < schema.size <= _JOIN_BYTES:
            block = self._arena.store_bytes(inline)
        head = _HEADER.pack(0, 0, len(self._releases), block, schema.number)
        releases = b"".join(map(_NUMBER.pack, self._releases)) if self._releases else b""
        return self._write([head, releases, numbers], [inline], schema.size, block)

    def _write(self, parts: list[bytes], arrays: list[Any], size: int, block: int) -> int:
        self._releases.clear()
        if block >= 0:
            self._in_use.add(block)
        total = sum(map(len, parts)) + size * (block < 0)
        self._write_socket(b"".join((_NUMBER.pack(total), *parts, *(arrays if block < 0 else ()))))
        return total + size * (block >= 0)

    def _write_socket(self, data: bytes) -> None:
        """Send as much as the socket accepts; the rest follows when the socket becomes writable."""
        if self._unsent:
            self._unsent += data
            return
        sent = self._try_send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._socket, self._on_writable)

    def _on_writable(self) -> None:
        del self._unsent[: self._try_send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _try_send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the peer is gone; the next read reports it

    def poll(self, seconds: float = 0.0) -> None:
        """Process messages that have arrived; if there are none, block up to `seconds` for the first."""
        if self._polling or self._closed:
            return
        count = self._read()
        if count is None and seconds and self._readable.poll(1e3 * seconds):
            count = self._read()
        if count is None:
            return
        if not count:
            self._close_now()
            return
        self._polling = True
        try:
            self._process(bytes(self._input[:count]))
        finally:
            self._polling = False

    def _read(self) -> int | None:
        """Read from the socket. Return the number of bytes, 0 at its end, None if there is nothing to read."""
        try:
            return self._socket.recv_into(self._input)
        except BlockingIOError:
            return None
        except OSError:
            return 0

    def _process(self, data: bytes) -> None:
        if self._partial:
            self._partial += data
            size = len(self._partial)
            if size < _NUMBER.size or size < _NUMBER.size + _NUMBER.unpack_from(self._partial)[0]:
                return
            data = bytes(self._partial)
            self._partial.clear()
        start, size = 0, len(data)
        while size - start >= _NUMBER.size:
            end = start + _NUMBER.size + _NUMBER.unpack_from(data, start)[0]
            if end > size:
                break
            message, nbytes = self._decode(data if end - start == size else data[start:end])
            start = end
            self._received(self, message, nbytes)
        self._partial += memoryview(data)[start:]

    def close(self) -> None:
        """Close the connection soon and call `lost`, as if the peer had closed it."""
        self._loop.call_soon(self._close_now)

    def _close_now(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for block in self._in_use:
            self._arena.free(block)
        self._in_use.clear()
        self._lost(self)

    def _decode(self, frame: bytes) -> tuple[Any, int]:
        """Return the message of a frame and the bytes transferred for it."""
        body_length, arrays, releases, block, schema = _HEADER.unpack_from(frame, _NUMBER.size)
        at = _NUMBER.size + _HEADER.size
        numbers = [_NUMBER.unpack_from(frame, at + i * _NUMBER.size)[0] for i in range(arrays + releases)]
        at += len(numbers) * _NUMBER.size
        sizes = numbers[:arrays]
        for released in numbers[arrays:]:
            self._in_use.discard(released)
            self._arena.free(released)
        if not body_length:
            return self._decode_known(self._schemas[schema], frame, at, block)
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
        message = load_message(body, buffers)
        if schema >= 0:
            self._schemas.learn(schema, message)
        if block >= 0:
            # The arrays are copied: the next frame in the other direction releases the block.
            self._releases.append(block)
        return message, len(frame) - _NUMBER.size + sum(sizes) * (block >= 0)

    def _decode_known(self, schema: MessageSchema, frame: bytes, at: int, block: int) -> tuple[Any, int]:
        start = at + schema.numbers.size
        memory: Any = bytearray(frame[start:]) if block < 0 else self._peer.copy(block, schema.size)
        if block >= 0:
            self._releases.append(block)
        return schema.unflatten(frame, at, memory), len(frame) - _NUMBER.size + schema.size * (block >= 0)
