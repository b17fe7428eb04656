"""An actor's end: what `act` of an inference server is, over a stream that stays open for the whole run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from thespis.core.context import Context, Waiting
from thespis.core.edges import Invite
from thespis.core.messages import Answer, Invitation
from thespis.core.types import Stream
from thespis.experience.seats import Told
from thespis.transport import calls
from thespis.transport.grpc_server import METHOD, SERVICE, TOKEN
from thespis.transport.inference_schema import Layout, edge_name, read_hello
from thespis.transport.tls import Tls

_RETRY_SECONDS = 0.2
_ATTEMPTS = 100
"""Without an answer in between. A network may be away for as long as a node may before it counts as lost."""
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
"""What the server answers to those it does not want; to ask again would change nothing."""


@dataclass(slots=True)
class Open:
    """A question without an answer yet."""

    number: int
    question: bytes
    answer: asyncio.Future[tuple[Answer, int]]


class Line:
    """Asks, and waits for the answer. A stream that breaks is opened anew and what is unanswered asked again.

    The server tells repeats by their numbers. A server that was restarted is somewhere else, so where it is is asked
    each time.
    """

    def __init__(self, ctx: Context, invite: Invite, layout: Layout, tls: Tls | None = None) -> None:
        me = ctx.identity
        self.ctx, self._invite, self._layout, self._tls = ctx, invite, layout, tls
        self._stream = Stream((me.role, me.index), me.incarnation)
        self.name = edge_name(invite)
        self._open: dict[int, Open] = {}
        self._call: Any = None
        self._sending = asyncio.Lock()
        self._kept: asyncio.Future[None] | None = None
        self._attempts = 0

    async def __call__(self, *words: Any) -> Answer:
        told = Told(*words)
        if self._kept is None:
            self._kept = self.ctx.ahead(self._keep())
            self._kept.add_done_callback(self._ended)
        answer: asyncio.Future[tuple[Answer, int]] = asyncio.get_running_loop().create_future()
        asked = self._open[told.start] = Open(told.number, self._layout.question(told), answer)
        try:
            with Waiting(self.ctx, self.name):
                if self._kept.done():
                    self._kept.result()
                if self._call is not None:
                    await self._send(self._call, asked.question)
                result, nbytes = await answer
        finally:
            del self._open[told.start]
        self.ctx.carried(self.name, len(asked.question) + nbytes)
        return result

    async def close(self) -> None:
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.gather(self._kept, return_exceptions=True)

    # -- the stream -------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """See to it that there is a stream."""
        while True:
            invitation = await self._invite(self._stream)
            try:
                await self._converse(invitation)
            except aio.AioRpcError as error:
                self._attempts += 1
                if error.code() in _FINAL or self._attempts > _ATTEMPTS:
                    what = f"{invitation.target}: {error.code().name}: {error.details()}"
                    raise ConnectionError(f"the inference server at {what}") from None
            finally:
                self._call = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _converse(self, invitation: Invitation) -> None:
        """Open a stream, ask what is open, and hand out answers until it breaks."""
        async with self._channel(invitation.target) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=((TOKEN, invitation.token),))
            _, actor = self._stream.who
            await self._send(call, self._layout.hello(actor, self._stream.incarnation))
            message = await call.read()
            if message is aio.EOF:
                return
            if read_hello(message).layout != str(self._layout):
                raise ConnectionError(f"{invitation.target} serves {read_hello(message).layout}, not {self._layout}")
            self._call = call
            for question in [asked.question for asked in self._open.values()]:
                await self._send(call, question)
            while (message := await call.read()) is not aio.EOF:
                self._answer(message)

    def _answer(self, message: bytes) -> None:
        start, number, answer = self._layout.read_answer(message)
        self._attempts = 0
        asked = self._open.get(start)
        if asked is not None and asked.number == number and not asked.answer.done():
            asked.answer.set_result((answer, len(message)))

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
        """Send, one at a time; over a stream that is broken nothing goes, and reading from it says why."""
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            async with self._sending:
                await call.write(message)

    def _ended(self, kept: asyncio.Future[None]) -> None:
        calls.fail([asked.answer for asked in self._open.values()], kept)
