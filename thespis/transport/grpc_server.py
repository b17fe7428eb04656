"""The server's end: every actor of the run has one stream, and nobody else gets any."""

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
from thespis.core.messages import Answer, Invitation
from thespis.core.system.reaper import guarded
from thespis.core.types import Stream
from thespis.experience.seats import Told
from thespis.transport.inference import Ask
from thespis.transport.inference_schema import Layout, Malformed, read_hello
from thespis.transport.tls import Tls

SERVICE, METHOD = "thespis.Inference", "Act"
TOKEN = "thespis-token"
_HELLO_SECONDS = 10.0
"""How long whoever opens a stream may take to say who it is."""
_STRANGER_MS = 10_000
"""How long a connection may stay without a stream."""
_STREAMS = 64
"""Streams of one connection at a time; an actor has one."""
_PING_MS = 20_000
"""How often the other machine is asked whether it is still there. One that was switched off says nothing."""
_NAME_CHARACTERS = 60
"""The name of a socket has 107 at most, and of these some are ours."""


class Refused(Exception):
    """Somebody who is not let in, or not any longer, and what to tell them."""

    def __init__(self, status: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class Life:
    """One life of an actor. `rows`: how many environments ask together, by the first of them."""

    stream: Stream
    rows: dict[int, int] = field(default_factory=dict)
    leave: asyncio.Future[None] | None = None
    """Done when its stream is to end; None while it has none."""


@dataclass(slots=True)
class Question:
    """One that came over a stream. `gone`: the stream is over."""

    give: Callable[[Answer], None]
    gone: bool = False


class Door:
    """Lets in those who know the token, are expected, and speak of the same arrays; each has one stream at a time.

    A refusal is a status of that one stream. The others and the server never hear of it.
    """

    def __init__(self, layout: Layout, address: str | None = None, tls: Tls | None = None) -> None:
        """`address`: where other machines reach this one; without it there is only a Unix socket, for this user."""
        self._layout, self._address, self._tls = layout, address, tls
        self._token = secrets.token_hex(32)
        self._lives: dict[int, Life] = {}
        self._opening = asyncio.Lock()
        self._server: Any = None
        self._target = ""
        self._left = ExitStack()

    async def invite(self, stream: Stream, ask: Ask) -> Invitation:
        """Expect this life of an actor from now on, and no earlier one: a stream that the actor had is over."""
        async with self._opening:
            if self._server is None:
                await self._open(ask)
        _, actor = stream.who
        life = self._lives.get(actor)
        if life is not None and life.leave is not None:
            life.leave.set_result(None)
            life.leave = None
        if life is None or life.stream != stream:
            self._lives[actor] = Life(stream)
        return Invitation(self._target, self._token)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        self._left.close()

    # -- opening ----------------------------------------------------------------------------------

    async def _open(self, ask: Ask) -> None:
        async def serve(_: Any, context: Any) -> None:
            try:
                await self._receive(context, ask)
            except Refused as refusal:
                await context.abort(refusal.status, str(refusal))
            except Malformed as error:
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
            # An actor's connection always has its stream. One without is a stranger's, or what is left of a stream.
            ("grpc.server_handshake_timeout_ms", _STRANGER_MS),
            ("grpc.max_connection_idle_ms", _STRANGER_MS),
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.keepalive_time_ms", _PING_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS // 2),
        ]

    def _listen(self, server: Any) -> str:
        """Take an address, and return what clients call it."""
        if self._address is None:
            target = f"unix:{self._private() / 'inference'}"
            server.add_insecure_port(target)
            return target
        host = f"[{self._address}]" if ":" in self._address else self._address
        try:
            if self._tls is None:
                return f"{host}:{server.add_insecure_port(f'{host}:0')}"
            return f"{host}:{server.add_secure_port(f'{host}:0', self._tls.server())}"
        except (OSError, RuntimeError) as error:
            raise ThespisError(f"the inference server cannot listen at {host}: {error}") from error

    def _private(self) -> Path:
        """A directory that only this user can enter, and that goes with this process however it ends."""
        base = tempfile.gettempdir()
        short = base if len(base) < _NAME_CHARACTERS else "/tmp"
        directory = Path(tempfile.mkdtemp(prefix="thespis-", dir=short))  # its mode is 0700
        self._left.enter_context(guarded("THESPIS_SOCKET", directory.name, directory))
        return directory

    # -- one stream -------------------------------------------------------------------------------

    async def _receive(self, context: Any, ask: Ask) -> None:
        """Serve a stream from its hello to its end."""
        self._check_token(context)
        life = await self._greet(context)
        leave = life.leave = asyncio.get_running_loop().create_future()
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        asked: dict[int, Question] = {}
        answers.put_nowait(self._layout.hello(life.stream.who[1], life.stream.incarnation))
        hearing = asyncio.create_task(self._hear(context, life, ask, asked, answers))
        saying = asyncio.create_task(_say(context, answers))
        try:
            done, _ = await asyncio.wait({hearing, saying, leave}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            if life.leave is leave:
                life.leave = None
            hearing.cancel()
            # Nobody waits for these any more, so no batch should.
            for question in asked.values():
                question.gone = True
            # A stream cannot end with a status while a message is on its way out.
            answers.put_nowait(None)
            await asyncio.wait({saying})

    def _check_token(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get(TOKEN, "")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token of the run is missing or wrong")

    async def _greet(self, context: Any) -> Life:
        """Whose stream it is."""
        try:
            message = await asyncio.wait_for(context.read(), _HELLO_SECONDS)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {_HELLO_SECONDS:g} s") from None
        if message is aio.EOF:
            raise Malformed("a stream without a hello")
        hello = read_hello(message)
        life = self._lives.get(hello.actor)
        if life is None or life.stream.incarnation != hello.incarnation:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"no such life of actor {hello.actor} is expected")
        if hello.layout != str(self._layout):
            raise Malformed(f"actor {hello.actor} has {hello.layout}; this server takes {self._layout}")
        if life.leave is not None:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"actor {hello.actor} has a stream already")
        return life

    async def _hear(
        self,
        context: Any,
        life: Life,
        ask: Ask,
        asked: dict[int, Question],
        answers: asyncio.Queue[bytes | None],
    ) -> None:
        """Take in questions until the actor leaves."""

        def give(told: Told, answer: Answer) -> None:
            del asked[told.start]
            answers.put_nowait(self._layout.answer(told, answer))

        while (message := await context.read()) is not aio.EOF:
            told = self._layout.read_question(message, life.stream)
            rows = len(told.flags)
            if life.rows.setdefault(told.start, rows) != rows or told.start in asked:
                raise Malformed(f"environments from {told.start} on have asked already, or were not {rows} before")
            question = asked[told.start] = Question(partial(give, told))
            ask(told, question)


async def _say(context: Any, answers: asyncio.Queue[bytes | None]) -> None:
    """Give answers as they come, until None or until the actor is gone; a stream takes one at a time."""
    with suppress(aio.InternalError):
        while (answer := await answers.get()) is not None:
            await context.write(answer)
