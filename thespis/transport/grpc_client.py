"""The gRPC inference client: calls `act` of an inference server over one long-lived stream."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from thespis.core.context import Context, Waiting
from thespis.core.edges import OpenSession
from thespis.core.payloads import ActResponse, InferenceEndpoint
from thespis.core.types import Stream
from thespis.experience.trajectory_assembler import StepMessage
from thespis.transport import calls
from thespis.transport.grpc_server import METHOD, SERVICE, TOKEN
from thespis.transport.inference_schema import InferenceSchema, edge_name, read_hello
from thespis.transport.tls import Tls

_RETRY_SECONDS = 0.2
_ATTEMPTS = 100
"""Maximum number of connection attempts without a response in between. It covers a network outage of 20 s."""
_PING_MS = 20_000
_FINAL = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Status codes of a refusal; a retry would be refused, too."""


@dataclass(slots=True)
class GrpcPendingRequest:
    """A request without a response."""

    number: int
    request: bytes
    reply: asyncio.Future[tuple[ActResponse, int]]


class GrpcInferenceClient:
    """Sends requests and waits for responses. After a broken stream it reconnects and repeats pending requests.

    The server recognises repeated requests by their numbers. A restarted server has a new address, so every reconnect
    resolves it again.
    """

    def __init__(
        self, ctx: Context, open_session: OpenSession, layout: InferenceSchema, tls: Tls | None = None
    ) -> None:
        me = ctx.identity
        self.ctx, self._open_session, self._layout, self._tls = ctx, open_session, layout, tls
        self._stream = Stream((me.role, me.index), me.incarnation)
        self.name = edge_name(open_session)
        self._pending: dict[int, GrpcPendingRequest] = {}
        self._call: Any = None
        self._sending = asyncio.Lock()
        self._session: asyncio.Future[None] | None = None
        self._attempts = 0

    async def __call__(self, *fields: Any) -> ActResponse:
        step = StepMessage(*fields)
        if self._session is None:
            self._session = self.ctx.ahead(self._keep_connected())
            self._session.add_done_callback(self._fail_pending)
        reply: asyncio.Future[tuple[ActResponse, int]] = asyncio.get_running_loop().create_future()
        pending = self._pending[step.start] = GrpcPendingRequest(step.number, self._layout.encode_request(step), reply)
        try:
            with Waiting(self.ctx, self.name):
                if self._session.done():
                    self._session.result()
                if self._call is not None:
                    await self._send(self._call, pending.request)
                result, nbytes = await reply
        finally:
            del self._pending[step.start]
        self.ctx.count_traffic(self.name, len(pending.request) + nbytes, len(pending.request))
        return result

    async def close(self) -> None:
        """Close the stream and stop reconnecting."""
        if self._session is not None:
            self._session.cancel()
            await asyncio.gather(self._session, return_exceptions=True)

    # -- the stream -------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Connect, and reconnect after every break."""
        while True:
            endpoint = await self._open_session(self._stream)
            try:
                await self._run_stream(endpoint)
            except aio.AioRpcError as error:
                self._attempts += 1
                if error.code() in _FINAL or self._attempts > _ATTEMPTS:
                    what = f"{endpoint.address}: {error.code().name}: {error.details()}"
                    raise ConnectionError(f"the inference server at {what}") from None
            finally:
                self._call = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _run_stream(self, endpoint: InferenceEndpoint) -> None:
        """Open a stream, send the pending requests, and process responses until the stream breaks."""
        async with self._channel(endpoint.address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=((TOKEN, endpoint.token),))
            _, actor = self._stream.who
            await self._send(call, self._layout.hello(actor, self._stream.incarnation))
            message = await call.read()
            if message is aio.EOF:
                return
            if read_hello(message).layout != str(self._layout):
                raise ConnectionError(f"{endpoint.address} serves {read_hello(message).layout}, not {self._layout}")
            self._call = call
            for request in [pending.request for pending in self._pending.values()]:
                await self._send(call, request)
            while (message := await call.read()) is not aio.EOF:
                self._on_response(message)

    def _on_response(self, message: bytes) -> None:
        start, number, reply = self._layout.decode_response(message)
        self._attempts = 0
        pending = self._pending.get(start)
        if pending is not None and pending.number == number and not pending.reply.done():
            pending.reply.set_result((reply, len(message)))

    def _channel(self, target: str) -> Any:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", self._layout.limit),
            ("grpc.max_send_message_length", self._layout.limit),
            ("grpc.keepalive_time_ms", _PING_MS),
            ("grpc.enable_http_proxy", 0),
        ]
        if self._tls is None:
            return aio.insecure_channel(target, options)
        return aio.secure_channel(target, self._tls.client(), [*options, *self._tls.options])

    async def _send(self, call: Any, message: bytes) -> None:
        """Send one message at a time. Ignore a broken stream: the next read raises the reason."""
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            async with self._sending:
                await call.write(message)

    def _fail_pending(self, session: asyncio.Future[None]) -> None:
        calls.fail_replies([pending.reply for pending in self._pending.values()], session)
