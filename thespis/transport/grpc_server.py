"""The gRPC inference server: every expected actor of the run has one stream."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from thespis.core.errors import ThespisError
from thespis.core.payloads import ActResponse, InferenceEndpoint
from thespis.core.system.reaper import reaped
from thespis.core.types import Stream
from thespis.experience.trajectory_assembler import StepMessage
from thespis.transport.inference import OnRequest
from thespis.transport.inference_schema import InferenceSchema, MalformedMessage, read_hello
from thespis.transport.tls import Tls

SERVICE, METHOD = "thespis.Inference", "Act"
TOKEN = "thespis-token"
_HELLO_SECONDS = 10.0
"""Time limit for the hello of a new stream."""
_STRANGER_MS = 10_000
"""Time limit of a connection without a stream, in milliseconds."""
_STREAMS = 64
"""Maximum number of streams per connection; an actor has one."""
_PING_MS = 20_000
"""Keepalive interval in milliseconds. A machine that was switched off closes no connection."""
_NAME_CHARACTERS = 60
"""Maximum length of the directory name: the name of a socket has at most 107 characters."""


class RejectedStream(Exception):
    """A refused stream: its gRPC status and the reason."""

    def __init__(self, status: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class GrpcSession:
    """An expected incarnation of an actor. `rows`: the size of each group of environments, by its first index."""

    stream: Stream
    rows: dict[int, int] = field(default_factory=dict)
    closing: asyncio.Future[None] | None = None
    """Set to close the stream; None if there is no stream."""


@dataclass(slots=True)
class GrpcRequest:
    """A request from a stream. `cancelled`: the stream is closed."""

    respond: Callable[[ActResponse], None]
    cancelled: bool = False


class GrpcInferenceServer:
    """Accepts expected actors with the right token and array layout, one stream each.

    A refusal is the status of one stream and does not affect other streams.
    """

    def __init__(self, layout: InferenceSchema, address: str | None = None, tls: Tls | None = None) -> None:
        """`address`: where other machines reach this one. Without it the server listens on a private Unix socket."""
        self._layout, self._address, self._tls = layout, address, tls
        self._token = secrets.token_hex(32)
        self._sessions: dict[int, GrpcSession] = {}
        self._opening = asyncio.Lock()
        self._server: Any = None
        self._target = ""
        self._cleanup = ExitStack()

    async def open_session(self, stream: Stream, on_request: OnRequest) -> InferenceEndpoint:
        """Expect this incarnation of an actor and no earlier one; close the stream of an earlier one."""
        async with self._opening:
            if self._server is None:
                await self._open(on_request)
        _, actor = stream.who
        session = self._sessions.get(actor)
        if session is not None and session.closing is not None:
            session.closing.set_result(None)
            session.closing = None
        if session is None or session.stream != stream:
            self._sessions[actor] = GrpcSession(stream)
        return InferenceEndpoint(self._target, self._token)

    async def close(self) -> None:
        """Close all streams and stop listening."""
        if self._server is not None:
            await self._server.stop(None)
        self._cleanup.close()

    # -- opening ----------------------------------------------------------------------------------

    async def _open(self, on_request: OnRequest) -> None:
        async def serve(_: Any, context: Any) -> None:
            try:
                await self._serve(context, on_request)
            except RejectedStream as refusal:
                await context.abort(refusal.status, str(refusal))
            except MalformedMessage as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        server = aio.server(options=self._options())
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._target = self._listen(server)
        await server.start()
        self._server = server

    def _options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.max_receive_message_length", self._layout.limit),
            ("grpc.max_send_message_length", self._layout.limit),
            ("grpc.so_reuseport", 0),
            # An actor's connection always has a stream. Close connections without one.
            ("grpc.server_handshake_timeout_ms", _STRANGER_MS),
            ("grpc.max_connection_idle_ms", _STRANGER_MS),
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.keepalive_time_ms", _PING_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS // 2),
        ]

    def _listen(self, server: Any) -> str:
        """Bind an address and return the target that clients connect to."""
        if self._address is None:
            target = f"unix:{self._private_directory() / 'inference'}"
            server.add_insecure_port(target)
            return target
        host = f"[{self._address}]" if ":" in self._address else self._address
        try:
            if self._tls is None:
                return f"{host}:{server.add_insecure_port(f'{host}:0')}"
            return f"{host}:{server.add_secure_port(f'{host}:0', self._tls.server())}"
        except (OSError, RuntimeError) as error:
            raise ThespisError(f"the inference server cannot listen on {host}: {error}") from error

    def _private_directory(self) -> Path:
        """Create a directory that only this user can enter. It is removed however this process ends."""
        base = tempfile.gettempdir()
        short = base if len(base) < _NAME_CHARACTERS else "/tmp"
        directory = Path(tempfile.mkdtemp(prefix="thespis-", dir=short))  # its mode is 0700
        self._cleanup.enter_context(reaped("THESPIS_SOCKET", directory.name, directory))
        return directory

    # -- one stream -------------------------------------------------------------------------------

    async def _serve(self, context: Any, on_request: OnRequest) -> None:
        """Serve a stream until it ends."""
        self._check_token(context)
        session = await self._authenticate(context)
        closing = session.closing = asyncio.get_running_loop().create_future()
        responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        pending: dict[int, GrpcRequest] = {}
        responses.put_nowait(self._layout.hello(session.stream.who[1], session.stream.incarnation))
        reading = asyncio.create_task(self._read_requests(context, session, on_request, pending, responses))
        writing = asyncio.create_task(_write_responses(context, responses))
        try:
            done, _ = await asyncio.wait({reading, writing, closing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            if session.closing is closing:
                session.closing = None
            reading.cancel()
            # The client no longer waits for these requests, so no batch should include them.
            for request in pending.values():
                request.cancelled = True
            # A stream cannot end with a status while a message is being written.
            responses.put_nowait(None)
            await asyncio.wait({writing})

    def _check_token(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get(TOKEN, "")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self._token.encode()):
            raise RejectedStream(grpc.StatusCode.UNAUTHENTICATED, "the token of the run is missing or wrong")

    async def _authenticate(self, context: Any) -> GrpcSession:
        """Read the hello and return the session it belongs to."""
        try:
            message = await asyncio.wait_for(context.read(), _HELLO_SECONDS)
        except TimeoutError:
            raise RejectedStream(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {_HELLO_SECONDS:g} s") from None
        if message is aio.EOF:
            raise MalformedMessage("the stream closed without a hello")
        hello = read_hello(message)
        session = self._sessions.get(hello.actor)
        if session is None or session.stream.incarnation != hello.incarnation:
            raise RejectedStream(
                grpc.StatusCode.NOT_FOUND, f"incarnation {hello.incarnation} of actor {hello.actor} is not expected"
            )
        if hello.layout != str(self._layout):
            raise MalformedMessage(f"actor {hello.actor} has {hello.layout}; this server takes {self._layout}")
        if session.closing is not None:
            raise RejectedStream(grpc.StatusCode.ALREADY_EXISTS, f"actor {hello.actor} already has a stream")
        return session

    async def _read_requests(
        self,
        context: Any,
        session: GrpcSession,
        on_request: OnRequest,
        pending: dict[int, GrpcRequest],
        responses: asyncio.Queue[bytes | None],
    ) -> None:
        """Receive requests until the actor closes the stream."""

        def respond(step: StepMessage, response: ActResponse) -> None:
            del pending[step.start]
            responses.put_nowait(self._layout.encode_response(step, response))

        while (message := await context.read()) is not aio.EOF:
            step = self._layout.decode_request(message, session.stream)
            rows = len(step.flags)
            if session.rows.setdefault(step.start, rows) != rows or step.start in pending:
                raise MalformedMessage(
                    f"environments from {step.start} on already have an open request, or were not {rows} before"
                )
            request = pending[step.start] = GrpcRequest(partial(respond, step))
            on_request(step, request)


async def _write_responses(context: Any, responses: asyncio.Queue[bytes | None]) -> None:
    """Write responses one at a time, until None or until the actor is gone."""
    with suppress(aio.InternalError):
        while (response := await responses.get()) is not None:
            await context.write(response)
