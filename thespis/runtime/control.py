"""The control socket between the supervisor and a process: pickled messages with file descriptors."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

_LENGTH = struct.Struct("<QI")  # bytes of the pickle, number of descriptors
_MAX_DESCRIPTORS = 64
_READ_BYTES = 64 * 1024
"""Maximum size of one read. Each read allocates this much."""


class Control:
    """One end of a control socket. The kernel keeps descriptors in order, so each message takes its number of them.

    The supervisor's end has a `loop` and never blocks: a stopped process must not block its supervisor. A process
    blocks while its supervisor is stopped.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.socket = sock
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._early: list[tuple[Any, list[int]]] = []
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._loop = loop
        sock.setblocking(loop is None)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send in order. With a loop, the part that the socket does not accept at once follows later.

        A closed peer is not an error here; the next read reports it.
        """
        body = pickle.dumps(message, protocol=5)
        data = memoryview(_LENGTH.pack(len(body), len(descriptors)) + body)
        waiting = bool(self._unsent)
        self._unsent.append((data, list(map(os.dup, descriptors))))
        if waiting:
            return
        self.socket.setblocking(self._loop is None)
        try:
            self._send_more()
        finally:
            self.socket.setblocking(False)

    def _send_more(self) -> None:
        """Send queued data as far as the socket accepts it."""
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else self.socket.send(data)
            except BlockingIOError:
                assert self._loop is not None, "a blocking socket would have waited"
                self._loop.add_writer(self.socket.fileno(), self._send_more)
                return
            except (BrokenPipeError, ConnectionResetError):
                sent = len(data)
            for descriptor in descriptors:
                os.close(descriptor)
            self._unsent.popleft()
            if sent < len(data):
                self._unsent.appendleft((data[sent:], []))
        if self._loop is not None:
            self._loop.remove_writer(self.socket.fileno())

    def receive(self) -> list[tuple[Any, list[int]]]:
        """Return all complete messages with their descriptors. Raises EOFError when the peer is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, _READ_BYTES, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._buffer += data
        self._descriptors += descriptors
        return list(self._complete())

    def receive_one(self) -> tuple[Any, list[int]]:
        """Block until a message arrives. `listen` delivers further messages of the same read."""
        self.socket.setblocking(True)
        while not self._early:
            self._early = self.receive()
        return self._early.pop(0)

    def listen(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[Any, list[int]], None]) -> None:
        """Deliver messages and their descriptors to `on_message` from an event loop, in order; None at the end."""
        self.socket.setblocking(False)

        def deliver_early() -> None:
            early, self._early = self._early, []
            for message, descriptors in early:
                on_message(message, descriptors)

        def readable() -> None:
            if self.socket.fileno() < 0:
                return  # closed in the same turn of the event loop
            # An event loop may run readers before callbacks that were scheduled earlier (uvloop does). A later message
            # must not overtake: the connection to a dead neighbour would replace that to the restarted one.
            deliver_early()
            try:
                messages = self.receive()
            except EOFError:
                loop.remove_reader(self.socket.fileno())
                messages = [(None, [])]
            for message, descriptors in messages:
                on_message(message, descriptors)

        loop.call_soon(deliver_early)
        loop.add_reader(self.socket.fileno(), readable)

    def close(self) -> None:
        """Close the socket and all queued descriptors."""
        if self._loop is not None and self.socket.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_writer(self.socket.fileno())
        self.socket.close()
        for descriptor in (*self._descriptors, *(fd for _, descriptors in self._unsent for fd in descriptors)):
            os.close(descriptor)
        self._descriptors.clear()
        self._unsent.clear()

    def _complete(self) -> Any:
        while len(self._buffer) >= _LENGTH.size:
            length, count = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            own, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield pickle.loads(body), own
