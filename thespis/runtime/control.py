"""The supervisor's line to each of its processes: pickled messages, with file descriptors alongside."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

_LENGTH = struct.Struct("<QI")  # bytes of the pickle, descriptors that come with it
_MOST_DESCRIPTORS = 64
_MOST_AT_ONCE = 64 * 1024
"""Bytes read in one go: that much memory is taken for each time, whatever comes."""


class Control:
    """One end of a control socket. The kernel keeps descriptors in order, so each message takes its share."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._early: list[tuple[Any, list[int]]] = []

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send at once, waiting if the other side is slow: control messages are few and small.

        A peer that is gone is noticed where its end is read, so here it is no error.
        """
        body = pickle.dumps(message, protocol=5)
        data = memoryview(_LENGTH.pack(len(body), len(descriptors)) + body)
        self.socket.setblocking(True)
        try:
            sent = socket.send_fds(self.socket, [data], list(descriptors)) if descriptors else self.socket.send(data)
            self.socket.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.socket.setblocking(False)

    def receive(self) -> list[tuple[Any, list[int]]]:
        """Every complete message there is, each with its descriptors. Raises EOFError when the peer is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, _MOST_AT_ONCE, _MOST_DESCRIPTORS)
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
        """Block until one message has come; what came with it is delivered once `listen` is called."""
        self.socket.setblocking(True)
        while not self._early:
            self._early = self.receive()
        return self._early.pop(0)

    def listen(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[Any, list[int]], None]) -> None:
        """Deliver messages and their descriptors to `on_message` from an event loop; None at the end."""
        self.socket.setblocking(False)

        def readable() -> None:
            if self.socket.fileno() < 0:
                return  # closed in the same turn of the loop in which this was due
            try:
                messages = self.receive()
            except EOFError:
                loop.remove_reader(self.socket.fileno())
                messages = [(None, [])]
            for message, descriptors in messages:
                on_message(message, descriptors)

        for message, descriptors in self._early:
            loop.call_soon(on_message, message, descriptors)
        self._early = []
        loop.add_reader(self.socket.fileno(), readable)

    def close(self) -> None:
        self.socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _complete(self) -> Any:
        while len(self._buffer) >= _LENGTH.size:
            length, count = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            mine, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield pickle.loads(body), mine
