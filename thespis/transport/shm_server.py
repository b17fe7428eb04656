"""The shared-memory inference server, for actors on the same machine.

Actors connect to a Unix socket in the abstract namespace. The server accepts processes of the same user that know the
token, and sends each the descriptor of a shared buffer (see shared_buffer.py). Afterwards the socket carries only
wake-ups.
"""

from __future__ import annotations

import asyncio
import hmac
import mmap
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from thespis.core.payloads import ActResponse, InferenceEndpoint
from thespis.core.types import Stream, Tree, map_tree
from thespis.experience.trajectory_assembler import StepMessage, common_flags
from thespis.transport import accept
from thespis.transport.accept import TOKEN_BYTES
from thespis.transport.inference import OnRequest
from thespis.transport.inference_schema import InferenceSchema, MalformedMessage, read_hello
from thespis.transport.shared_buffer import MAX_MESSAGE_BYTES, REQUEST, RESPONSE, WAKE_UP, SharedBuffer

WELCOME = b"\x01"
"""The reply to an accepted hello. A refusal is text and does not begin with this byte."""
_HELLO_BYTES = 64 * 1024


@dataclass(slots=True)
class ShmSession:
    """An expected incarnation of an actor, and its connection once it has one."""

    stream: Stream
    connection: ShmConnection | None = None


class ShmInferenceServer:
    """Accepts expected actors with the right token and array layout, one connection each."""

    def __init__(self, layout: InferenceSchema) -> None:
        self._layout = layout
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._address = f"thespis-{secrets.token_hex(16)}"
        self._sessions: dict[int, ShmSession] = {}
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open_session(self, stream: Stream, on_request: OnRequest) -> InferenceEndpoint:
        """Expect this incarnation of an actor and no earlier one; close the connection of an earlier one."""
        if self._socket is None:
            self._socket = accept.listen(self._address, socket.SOCK_SEQPACKET)
            # Runs until `close`. A refused connection does not end it.
            self._serving = asyncio.create_task(accept.serve(self._socket, partial(self._accept, on_request)))
        _, actor = stream.who
        self._close_session(actor)
        self._sessions[actor] = ShmSession(stream)
        return InferenceEndpoint(self._address, self._token.hex())

    async def close(self) -> None:
        """Close all connections and stop listening."""
        for actor in self._sessions:
            self._close_session(actor)
        if self._socket is not None and self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            self._socket.close()

    def _close_session(self, actor: int) -> None:
        session = self._sessions.get(actor)
        if session is not None and session.connection is not None:
            session.connection.close()

    async def _accept(self, on_request: OnRequest, client: socket.socket) -> None:
        try:
            hello = await asyncio.get_running_loop().sock_recv(client, _HELLO_BYTES)
            session = self._authenticate(hello)
            session.connection = ShmConnection(client, self._layout, session.stream, on_request)
        except MalformedMessage as refusal:
            with suppress(OSError):
                client.send(f"{refusal}".encode())
            client.close()
        except BaseException:  # a timeout, or no memory: not a refusal, so the client retries
            client.close()
            raise

    def _authenticate(self, hello: bytes) -> ShmSession:
        """Check a hello and return the session it belongs to."""
        token, body = hello[:TOKEN_BYTES], hello[TOKEN_BYTES:]
        if not hmac.compare_digest(token, self._token):
            raise MalformedMessage("the token of the run is missing or wrong")
        client = read_hello(body)
        session = self._sessions.get(client.actor)
        if session is None or session.stream.incarnation != client.incarnation:
            raise MalformedMessage(f"incarnation {client.incarnation} of actor {client.actor} is not expected")
        if client.layout != str(self._layout):
            raise MalformedMessage(f"actor {client.actor} has {client.layout}; this server takes {self._layout}")
        if session.connection is not None and not session.connection.closed:
            raise MalformedMessage(f"actor {client.actor} already has a connection")
        return session


class ShmConnection:
    """The connection of one actor."""

    def __init__(self, client: socket.socket, layout: InferenceSchema, stream: Stream, on_request: OnRequest) -> None:
        self.closed = False
        self._socket, self._stream, self._on_request = client, stream, on_request
        self._requests: dict[int, ShmRequest] = {}
        memory = os.memfd_create("thespis-inference", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, SharedBuffer.size(layout))
            self._buffer = SharedBuffer(layout, mmap.mmap(memory, 0))
            with suppress(OSError):  # a closed client is detected by the next read
                socket.send_fds(client, [WELCOME], [memory])
        finally:
            os.close(memory)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(client, self._on_readable)

    def close(self) -> None:
        """Close the connection; its pending requests are cancelled."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def send(self, message: bytes) -> None:
        """Send a message; do nothing if the client is gone."""
        with suppress(OSError):  # a closed client is detected by the next read
            self._socket.send(message)

    def _on_readable(self) -> None:
        try:
            message = self._socket.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if len(message) == REQUEST.size:
            number, start, rows, finals, common = REQUEST.unpack(message)
            request = self._requests.get(start)
            if request is None:
                request = self._requests[start] = ShmRequest(self, self._buffer, start, rows)
            elif request.open:
                raise MalformedMessage(f"environments from {start} on already have an open request")
            self._on_request(request.read(self._stream, number, finals, common), request)
        elif len(message) == WAKE_UP.size:
            self._requests[WAKE_UP.unpack(message)[0]].wake_up()
        else:
            self.close()


class ShmRequest:
    """The requests of one group of environments, one at a time. The object is reused."""

    __slots__ = ("_buffer", "_common_flags", "_connection", "_number", "_slot", "_start", "open")

    def __init__(self, connection: ShmConnection, buffer: SharedBuffer, start: int, rows: int) -> None:
        self._connection, self._buffer, self._start, self._slot = connection, buffer, start, buffer.slot(start, rows)
        self._number, self.open = 0, False
        self._common_flags = common_flags(rows).flags

    def read(self, stream: Stream, number: int, finals: int, common: int) -> StepMessage:
        """Return the request in the buffer. Its arrays stay valid until the next request but one."""
        self._number, self.open = number, True
        arrays = self._slot.requests[number & 1]
        final: Tree | None = None if finals < 0 else map_tree(lambda rows: rows[:finals], arrays.finals)
        return StepMessage(
            stream,
            self._start,
            number,
            arrays.obs,
            arrays.rewards,
            self._common_flags if common else arrays.flags,
            final,
        )

    @property
    def cancelled(self) -> bool:
        """Whether the client is gone."""
        return self._connection.closed

    def respond(self, response: ActResponse) -> None:
        """Write the response, and wake the client unless it spins."""
        slot, self.open = self._slot, False
        np.copyto(slot.actions, response.actions)
        np.copyto(slot.logp, response.logp)
        self._buffer.publish_response(self._start, self._number, response.version)
        if not self._buffer.spinning:
            self._connection.send(RESPONSE.pack(self._number, self._start))

    def wake_up(self) -> None:
        """The actor stopped spinning: notify it of a response that was written while it was spinning."""
        if not self.open:
            self._connection.send(RESPONSE.pack(self._number, self._start))
