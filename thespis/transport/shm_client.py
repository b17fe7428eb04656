"""An actor's end of a stream to an inference server on the same machine: see shm_server.py."""

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

from thespis.core.context import Asking, Context, Waiting
from thespis.core.edges import Invite
from thespis.core.messages import Answer, Invitation
from thespis.core.types import Stream, Tree
from thespis.experience.seats import Told, usual_flags
from thespis.transport import accept, calls
from thespis.transport.calls import PendingReply
from thespis.transport.inference_schema import Layout, edge_name
from thespis.transport.shared_buffer import ANSWER, LONGEST, QUESTION, REMINDER, Page, Place
from thespis.transport.shm_server import WELCOME

_SECONDS = 5.0
"""How long the server may take to let an actor in: it is on this machine."""
_REFUSAL_BYTES = 64 * 1024
_RETRY_SECONDS = 0.2
_ATTEMPTS = 100
"""Without an answer in between."""
_LOOK_SECONDS = 500e-6
"""How long an actor looks for an answer before it sleeps."""
_VAIN = 4
"""How often that may be in vain, one time after another, before it sleeps at once for a while."""
_SLEEPS = 32, 1024
"""Questions for which it does: the first time, and at most. The number doubles until an answer is seen again."""
_IN_ORDER = platform.machine() in ("x86_64", "AMD64")
"""Whether what one process writes last is seen last by all others; else one cannot look for an answer."""
_TIME = struct.Struct("ll")  # seconds, microseconds


@dataclass(slots=True)
class Open:
    """A question without an answer yet."""

    told: Told
    answer: PendingReply


class NearLine:
    """Asks, and waits for the answer. A stream that breaks is opened anew and what is unanswered asked again.

    The server tells repeats by their numbers. A server that was restarted is somewhere else, so where it is is asked
    each time.
    """

    def __init__(self, ctx: Context, invite: Invite, layout: Layout) -> None:
        me = ctx.identity
        self.ctx, self.name = ctx, edge_name(invite)
        self._invite, self._layout = invite, layout
        self._stream = Stream((me.role, me.index), me.incarnation)
        self._open: dict[int, Open] = {}
        self._kept: asyncio.Future[None] | None = None
        self._socket: socket.socket | None = None
        self._page: Page | None = None
        self._broken: asyncio.Future[None] | None = None
        self._patience = 0.0
        self._asleep = 0 if _IN_ORDER else sys.maxsize  # questions whose answers are not looked for
        self._in_vain, self._sleeps = 0, _SLEEPS[0]
        self._attempts = 0

    def __call__(self, *words: Any) -> Asking[Answer]:
        return _Asking(self, Told(*words))

    def begin(self, told: Told) -> asyncio.Future[Answer]:
        """Ask now; the answer comes later."""
        if self._kept is None:
            self._kept = self.ctx.ahead(self._keep())
            self._kept.add_done_callback(self._ended)
        answer = PendingReply(self)
        self._open[told.start] = Open(told, answer)
        if self._socket is not None:
            self._put(self._socket, told)
        elif self._kept.done():
            self._ended(self._kept)
        return answer

    def take(self, seconds: float = 0.0) -> None:
        """Take in an answer that has come. With `seconds`: if none has, wait that long for one."""
        sock, page = self._socket, self._page
        if sock is None or page is None:
            return
        if seconds:
            self._asleep -= 1
            if self._asleep >= 0 or len(self._open) != 1 or not self._look(sock, page):
                self._wait(sock, seconds)
        else:
            while self._hear(sock, socket.MSG_DONTWAIT):
                pass

    async def close(self) -> None:
        self._leave()
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.gather(self._kept, return_exceptions=True)

    # -- questions and answers --------------------------------------------------------------------

    def _put(self, sock: socket.socket, told: Told) -> None:
        """Write a question where the server will look, and wake it."""
        rows, finals = len(told.rewards), -1
        seen = self._place(told).seen[told.number & 1]
        if isinstance(told.obs, dict):
            _copy(self._layout, told.obs, seen.obs)
        else:
            seen.obs[:] = told.obs  # type: ignore[index]
        seen.rewards[:] = told.rewards
        usual = told.flags is usual_flags(rows).flags
        if not usual:
            seen.flags[:] = told.flags
            finals = -1 if told.finals is None else _copy(self._layout, told.finals, seen.finals)
        with suppress(OSError):  # a server that is gone is noticed where its end is read
            sock.send(QUESTION.pack(told.number, told.start, rows, finals, usual))

    def _look(self, sock: socket.socket, page: Page) -> bool:
        """Look for the answer to the only question there is, and let others work; returns whether it came."""
        ((start, asked),) = self._open.items()
        number, until = asked.told.number, time.perf_counter() + _LOOK_SECONDS
        page.looked_at = True
        while not page.answered(start, number):
            os.sched_yield()
            if time.perf_counter() > until:
                page.looked_at = False
                self._in_vain += 1
                if self._in_vain >= _VAIN:
                    self._asleep, self._sleeps = self._sleeps, min(2 * self._sleeps, _SLEEPS[1])
                with suppress(OSError):
                    sock.send(REMINDER.pack(start))
                return False
        page.looked_at = False
        self._in_vain, self._sleeps = 0, _SLEEPS[0]
        self._answer(number, start)
        return True

    def _wait(self, sock: socket.socket, seconds: float) -> None:
        if seconds != self._patience:
            self._patience = seconds
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(0, round(1e6 * seconds)))
        self._hear(sock, 0)

    def _hear(self, sock: socket.socket, flags: int) -> bool:
        """Take in a message; returns whether there was one."""
        try:
            message = sock.recv(LONGEST, flags)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        if len(message) != ANSWER.size:
            self._leave()
            return False
        self._answer(*ANSWER.unpack(message))
        return True

    def _answer(self, number: int, start: int) -> None:
        asked = self._open.get(start)
        if asked is None or asked.told.number != number or self._page is None:
            return
        del self._open[start]
        self._attempts = 0
        place, finals = self._place(asked.told), asked.told.finals
        told = 0 if finals is None else sum(part.nbytes for part in self._layout.listed(finals))
        self.ctx.carried(self.name, place.nbytes + told)
        if not asked.answer.done():
            version = self._page.version(start)
            asked.answer.set_result(Answer(place.actions.copy(), place.logp.copy(), version))

    def _place(self, told: Told) -> Place:
        assert self._page is not None
        return self._page.place(told.start, len(told.rewards))

    # -- the stream -------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """See to it that there is a stream."""
        while True:
            invitation = await self._invite(self._stream)
            with suppress(OSError):
                await self._converse(*await asyncio.to_thread(self._come, invitation))
            self._attempts += 1
            if self._attempts > _ATTEMPTS:
                raise ConnectionError("the inference server lets nobody in")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _converse(self, sock: socket.socket, memory: mmap.mmap) -> None:
        """Ask what is open, and hand out answers until the stream breaks."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self._socket, self._page, self._patience = sock, Page(self._layout, memory), 0.0
        loop.add_reader(sock, self.take)
        for asked in self._open.values():
            self._put(sock, asked.told)
        await self._broken

    def _come(self, invitation: Invitation) -> tuple[socket.socket, mmap.mmap]:
        """A stream, and the memory that belongs to it."""
        sock = accept.connect(invitation.target, socket.SOCK_SEQPACKET, _SECONDS)
        descriptors: list[int] = []
        try:
            _, actor = self._stream.who
            hello = self._layout.hello(actor, self._stream.incarnation)
            sock.send(bytes.fromhex(invitation.token) + hello)
            answer, descriptors, _, _ = socket.recv_fds(sock, _REFUSAL_BYTES, 1)
            if not answer:
                raise ConnectionResetError("the server left")
            if answer != WELCOME:
                raise Refused(f"the inference server says: {answer.decode(errors='replace')}")
            sock.settimeout(None)
            return sock, mmap.mmap(descriptors[0], 0)
        except BaseException:
            sock.close()
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _leave(self) -> None:
        if self._socket is not None and self._broken is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._broken.set_result(None)

    def _ended(self, kept: asyncio.Future[None]) -> None:
        calls.fail([asked.answer for asked in self._open.values()], kept)


class Refused(Exception):
    """The server does not want this actor; to ask again would change nothing."""


class _Asking(Asking[Answer]):
    """One question. Its time is booked as waiting where a role awaits it, not if it is asked ahead."""

    __slots__ = ("_line", "_told")

    def __init__(self, line: NearLine, told: Told) -> None:
        self._line, self._told = line, told

    def begin(self) -> asyncio.Future[Answer]:
        return self._line.begin(self._told)

    def __await__(self) -> Generator[Any, None, Answer]:
        ctx = self._line.ctx
        with Waiting(ctx, self._line.name):
            answer = self.begin()
            ctx.attend(answer)
            return answer.result() if answer.done() else (yield from answer)


def _copy(layout: Layout, tree: Tree, places: Tree) -> int:
    """Copy an observation of K rows to the first K of its places; returns K."""
    rows = 0
    for value, place in zip(layout.listed(tree), layout.listed(places), strict=True):
        rows = len(value)
        place[:rows] = value
    return rows
