"""The shared-memory inference client, for actors on the same machine as the server; see shm_server.py."""

from __future__ import annotations

import asyncio
import mmap
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from thespis.core.context import Context, LazyCall, Waiting
from thespis.core.edges import OpenSession
from thespis.core.payloads import ActResponse, InferenceEndpoint
from thespis.core.types import Stream, Tree
from thespis.experience.trajectory_assembler import StepMessage, common_flags
from thespis.transport import accept, calls
from thespis.transport.calls import PendingReply
from thespis.transport.inference_schema import InferenceSchema, edge_name
from thespis.transport.shared_buffer import MAX_MESSAGE_BYTES, REQUEST, RESPONSE, WAKE_UP, SharedBuffer, Slot
from thespis.transport.shm_server import WELCOME

_HANDSHAKE_SECONDS = 5.0
"""Time limit of the handshake; the server is on this machine."""
_REFUSAL_BYTES = 64 * 1024
_RETRY_SECONDS = 0.2
_ATTEMPTS = 100
"""Maximum number of connection attempts without a response in between."""
_SPIN_SECONDS = 500e-6
"""How long an actor spins on the buffer before it blocks."""
_FAILED_SPINS = 4
"""Number of consecutive failed spins after which the actor blocks at once for a number of requests."""
_SKIPPED_SPINS = 32, 1024
"""First and maximum number of requests without spinning. The number doubles until a spin succeeds."""
_ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")
"""Whether other processes see stores in program order. On other machines an actor cannot spin on the buffer."""
_TIME = struct.Struct("ll")  # seconds, microseconds


@dataclass(slots=True)
class ShmPendingRequest:
    """A request without a response."""

    step: StepMessage
    reply: PendingReply


class ShmInferenceClient:
    """Sends requests and waits for responses. After a broken connection it reconnects and repeats pending requests.

    The server recognises repeated requests by their numbers. A restarted server has a new address, so every reconnect
    resolves it again.
    """

    def __init__(self, ctx: Context, open_session: OpenSession, layout: InferenceSchema) -> None:
        me = ctx.identity
        self.ctx, self.name = ctx, edge_name(open_session)
        self._open_session, self._layout = open_session, layout
        self._stream = Stream((me.role, me.index), me.incarnation)
        self._pending: dict[int, ShmPendingRequest] = {}
        self._session: asyncio.Future[None] | None = None
        self._socket: socket.socket | None = None
        self._buffer: SharedBuffer | None = None
        self._broken: asyncio.Future[None] | None = None
        self._timeout = 0.0
        self._skip = 0 if _ORDERED_STORES else sys.maxsize  # number of requests without spinning
        self._failed, self._next_skip = 0, _SKIPPED_SPINS[0]
        self._attempts = 0

    def __call__(self, *fields: Any) -> LazyCall[ActResponse]:
        return _LazyRequest(self, StepMessage(*fields))

    def begin(self, step: StepMessage) -> asyncio.Future[ActResponse]:
        """Send a request now; return its future response."""
        if self._session is None:
            self._session = self.ctx.ahead(self._keep_connected())
            self._session.add_done_callback(self._fail_pending)
        reply = PendingReply(self)
        self._pending[step.start] = ShmPendingRequest(step, reply)
        if self._socket is not None:
            self._send(self._socket, step)
        elif self._session.done():
            self._fail_pending(self._session)
        return reply

    def poll(self, seconds: float = 0.0) -> None:
        """Process responses that have arrived; with `seconds`, spin or block up to that long for the first."""
        sock, buffer = self._socket, self._buffer
        if sock is None or buffer is None:
            return
        if seconds:
            self._skip -= 1
            if self._skip >= 0 or len(self._pending) != 1 or not self._spin(sock, buffer):
                self._wait(sock, seconds)
        else:
            while self._receive(sock, socket.MSG_DONTWAIT):
                pass

    async def close(self) -> None:
        """Close the connection and stop reconnecting."""
        self._disconnect()
        if self._session is not None:
            self._session.cancel()
            await asyncio.gather(self._session, return_exceptions=True)

    # -- requests and responses -------------------------------------------------------------------

    def _send(self, sock: socket.socket, step: StepMessage) -> None:
        """Write a request to the buffer and wake the server."""
        rows, finals = len(step.rewards), -1
        arrays = self._slot(step).requests[step.number & 1]
        if isinstance(step.obs, dict):
            _copy(self._layout, step.obs, arrays.obs)
        else:
            arrays.obs[:] = step.obs  # type: ignore[index]
        arrays.rewards[:] = step.rewards
        common = step.flags is common_flags(rows).flags
        if not common:
            arrays.flags[:] = step.flags
            finals = -1 if step.finals is None else _copy(self._layout, step.finals, arrays.finals)
        with suppress(OSError):  # a closed server is detected by the next read
            sock.send(REQUEST.pack(step.number, step.start, rows, finals, common))

    def _spin(self, sock: socket.socket, buffer: SharedBuffer) -> bool:
        """Spin until the only pending request is answered, yielding the core; return False after a timeout."""
        ((start, pending),) = self._pending.items()
        number, until = pending.step.number, time.perf_counter() + _SPIN_SECONDS
        buffer.spinning = True
        while not buffer.is_answered(start, number):
            os.sched_yield()
            if time.perf_counter() > until:
                buffer.spinning = False
                self._failed += 1
                if self._failed >= _FAILED_SPINS:
                    self._skip, self._next_skip = self._next_skip, min(2 * self._next_skip, _SKIPPED_SPINS[1])
                with suppress(OSError):
                    sock.send(WAKE_UP.pack(start))
                return False
        buffer.spinning = False
        self._failed, self._next_skip = 0, _SKIPPED_SPINS[0]
        self._on_response(number, start)
        return True

    def _wait(self, sock: socket.socket, seconds: float) -> None:
        if seconds != self._timeout:
            self._timeout = seconds
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(0, round(1e6 * seconds)))
        self._receive(sock, 0)

    def _receive(self, sock: socket.socket, flags: int) -> bool:
        """Receive one message; return whether there was one."""
        try:
            message = sock.recv(MAX_MESSAGE_BYTES, flags)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        if len(message) != RESPONSE.size:
            self._disconnect()
            return False
        self._on_response(*RESPONSE.unpack(message))
        return True

    def _on_response(self, number: int, start: int) -> None:
        pending = self._pending.get(start)
        if pending is None or pending.step.number != number or self._buffer is None:
            return
        del self._pending[start]
        self._attempts = 0
        slot, finals = self._slot(pending.step), pending.step.finals
        final_bytes = 0 if finals is None else sum(part.nbytes for part in self._layout.listed(finals))
        nbytes = slot.nbytes + final_bytes
        self.ctx.count_traffic(self.name, nbytes, nbytes - slot.actions.nbytes - slot.logp.nbytes - RESPONSE.size)
        if not pending.reply.done():
            version = self._buffer.version(start)
            pending.reply.set_result(ActResponse(slot.actions.copy(), slot.logp.copy(), version))

    def _slot(self, step: StepMessage) -> Slot:
        assert self._buffer is not None
        return self._buffer.slot(step.start, len(step.rewards))

    # -- the stream -------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Connect, and reconnect after every break."""
        while True:
            endpoint = await self._open_session(self._stream)
            with suppress(OSError):
                await self._run_connection(*await asyncio.to_thread(self._connect, endpoint))
            self._attempts += 1
            if self._attempts > _ATTEMPTS:
                raise ConnectionError("the inference server accepts no connection")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _run_connection(self, sock: socket.socket, memory: mmap.mmap) -> None:
        """Send the pending requests and process responses until the connection breaks."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self._socket, self._buffer, self._timeout = sock, SharedBuffer(self._layout, memory), 0.0
        loop.add_reader(sock, self.poll)
        for pending in self._pending.values():
            self._send(sock, pending.step)
        await self._broken

    def _connect(self, endpoint: InferenceEndpoint) -> tuple[socket.socket, mmap.mmap]:
        """Connect and authenticate; return the socket and its shared memory."""
        sock = accept.connect(endpoint.address, socket.SOCK_SEQPACKET, _HANDSHAKE_SECONDS)
        descriptors: list[int] = []
        try:
            _, actor = self._stream.who
            hello = self._layout.hello(actor, self._stream.incarnation)
            sock.send(bytes.fromhex(endpoint.token) + hello)
            reply, descriptors, _, _ = socket.recv_fds(sock, _REFUSAL_BYTES, 1)
            if not reply:
                raise ConnectionResetError("the server closed the connection")
            if reply != WELCOME:
                raise HandshakeRefused(f"the inference server refused the connection: {reply.decode(errors='replace')}")
            sock.settimeout(None)
            return sock, mmap.mmap(descriptors[0], 0)
        except BaseException:
            sock.close()
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _disconnect(self) -> None:
        if self._socket is not None and self._broken is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._broken.set_result(None)

    def _fail_pending(self, session: asyncio.Future[None]) -> None:
        calls.fail_replies([pending.reply for pending in self._pending.values()], session)


class HandshakeRefused(Exception):
    """The server refused this actor; a retry would be refused, too."""


class _LazyRequest(LazyCall[ActResponse]):
    """One request. Its time counts as waiting if a role awaits it, not if it is sent ahead."""

    __slots__ = ("_client", "_step")

    def __init__(self, client: ShmInferenceClient, step: StepMessage) -> None:
        self._client, self._step = client, step

    def begin(self) -> asyncio.Future[ActResponse]:
        return self._client.begin(self._step)

    def __await__(self) -> Generator[Any, None, ActResponse]:
        ctx = self._client.ctx
        with Waiting(ctx, self._client.name):
            reply = self.begin()
            ctx.poll(reply)
            return reply.result() if reply.done() else (yield from reply)


def _copy(layout: InferenceSchema, tree: Tree, target: Tree) -> int:
    """Copy an observation of K rows to the first K rows of `target`; return K."""
    rows = 0
    for value, array in zip(layout.listed(tree), layout.listed(target), strict=True):
        rows = len(value)
        array[:rows] = value
    return rows
