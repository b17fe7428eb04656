"""A connection between two processes: control data over a Unix socket, large arrays through shared memory.

A frame is a header, a pickle, and the arrays of the pickle. Small arrays follow the pickle in the socket. Large arrays
are written to the sender's arena, a memfd, and the frame holds only their offset. The receiver copies them at once, so
a block is in use for one call. An array that the sender allocated in its arena is not copied at all: its receivers read
it in place, and the block is free again when the sender and all receivers have dropped the array.

A message with a known schema (see schema_cache.py) has no pickle, only its numbers and arrays.

Pickle is safe here: both ends are processes of this run, connected by a socketpair or after a handshake.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from thespis.core.opaque import aligned, dump_message, load_message
from thespis.core.types import Array
from thespis.transport.arena import Arena, PeerArena
from thespis.transport.schema_cache import MessageSchema, SchemaCache, flatten_message

_HEADER = struct.Struct("<QIIqi?")
# Pickle bytes, array count, release count, arena block (-1: arrays are inline), schema (-1: none), whether the receiver
# reads the block in place. If there are no pickle bytes, the schema is known and the numbers of the message replace the
# pickle.
_NUMBER = struct.Struct("<Q")
_INLINE_BYTES = 16 * 1024
"""Up to this many bytes, a second copy of the arrays is cheaper than allocating shared memory."""
_JOIN_BYTES = 256 * 1024
"""Up to this many bytes, arrays are joined first and copied to shared memory at once: one more copy, fewer calls."""
_READ_BYTES = 64 * 1024
"""Maximum size of one read from a socket."""


Received = Callable[["Connection", Any, int], None]
"""Handler of a received message: `(connection, message, bytes transferred)`."""


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
        self._dropped: deque[int] = deque()  # blocks that were read in place; any thread may append
        self._in_use: Counter[int] = Counter()
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
        while self._dropped:
            self._releases.append(self._dropped.popleft())
        parts = flatten_message(message)
        schema = self._schemas.find(parts) if parts is not None else None
        if parts is not None and schema is not None:
            with suppress(struct.error):  # an integer of more than 64 bits
                return self._write_known(schema, schema.numbers.pack(*parts.numbers), parts.arrays)
        body, buffers = dump_message(message)
        sizes = [buffer.nbytes for buffer in buffers]
        block = self._arena.store(buffers) if sum(sizes) > _INLINE_BYTES else -1
        added = self._schemas.register(parts, message) if parts is not None and schema is None else -1
        head = _HEADER.pack(len(body), len(sizes), len(self._releases), block, added, False)
        numbers = b"".join(map(_NUMBER.pack, (*sizes, *self._releases)))
        return self._write([head, numbers, body], buffers, sum(sizes), block)

    def _write_known(self, schema: MessageSchema, numbers: bytes, arrays: list[Array]) -> int:
        """Send the numbers and arrays of a message whose schema the peer knows."""
        block = self._arena.share(arrays[0]) if len(arrays) == 1 and schema.size > _JOIN_BYTES else -1
        in_place = block >= 0
        if not in_place and schema.size > _JOIN_BYTES:
            block = self._arena.store_at(schema.size, arrays, schema.offsets)
        inline = schema.join(arrays) if block < 0 else b""
        if _INLINE_BYTES < schema.size <= _JOIN_BYTES:
            block = self._arena.store_bytes(inline)
        head = _HEADER.pack(0, 0, len(self._releases), block, schema.number, in_place)
        releases = b"".join(map(_NUMBER.pack, self._releases)) if self._releases else b""
        return self._write([head, releases, numbers], [inline], schema.size, block)

    def _write(self, parts: list[bytes], arrays: list[Any], size: int, block: int) -> int:
        self._releases.clear()
        if block >= 0:
            self._in_use[block] += 1
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
        for block in self._in_use.elements():
            self._arena.free(block)
        self._in_use.clear()
        self._lost(self)

    def _decode(self, frame: bytes) -> tuple[Any, int]:
        """Return the message of a frame and the bytes transferred for it."""
        body_length, arrays, releases, block, schema, in_place = _HEADER.unpack_from(frame, _NUMBER.size)
        at = _NUMBER.size + _HEADER.size
        numbers = [_NUMBER.unpack_from(frame, at + i * _NUMBER.size)[0] for i in range(arrays + releases)]
        at += len(numbers) * _NUMBER.size
        sizes = numbers[:arrays]
        for released in numbers[arrays:]:
            self._in_use[released] -= 1
            if not self._in_use[released]:
                del self._in_use[released]
            self._arena.free(released)
        if not body_length:
            return self._decode_known(self._schemas[schema], frame, at, block, in_place)
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

    def _decode_known(
        self, schema: MessageSchema, frame: bytes, at: int, block: int, in_place: bool
    ) -> tuple[Any, int]:
        start = at + schema.numbers.size
        memory: Any
        if in_place:
            memory = self._peer.view(block, schema.size, self._dropped.append)
        elif block >= 0:
            memory = self._peer.copy(block, schema.size)
            self._releases.append(block)
        else:
            memory = bytearray(frame[start:])
        return schema.unflatten(frame, at, memory), len(frame) - _NUMBER.size + schema.size * (block >= 0)
