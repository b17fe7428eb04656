"""The server's end for actors on the same machine: what is asked and answered stays in memory that both can see.

Actors come to a Unix socket in the abstract namespace, which has no file and goes with its process; it opens only for
the same user, who must also know the token. Over it they are given their memory (see shared_buffer.py). From then on
the socket only wakes.
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

from thespis.core.messages import Answer, Invitation
from thespis.core.types import Stream, Tree, map_tree
from thespis.experience.seats import Told, usual_flags
from thespis.transport import accept
from thespis.transport.inference import Ask
from thespis.transport.inference_schema import Layout, Malformed, read_hello
from thespis.transport.shared_buffer import ANSWER, LONGEST, QUESTION, REMINDER, Page

TOKEN_BYTES = 32
WELCOME = b"\x01"
"""What a refusal does not begin with: that is text."""
_HELLO_BYTES = 64 * 1024


@dataclass(slots=True)
class Life:
    """One life of an actor that is expected, and its stream if it has come."""

    stream: Stream
    desk: Desk | None = None


class NearDoor:
    """Lets in those who know the token, are expected, and speak of the same arrays; each has one stream at a time."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._address = f"thespis-{secrets.token_hex(16)}"
        self._lives: dict[int, Life] = {}
        self._socket: socket.socket | None = None
        self._receiving: asyncio.Task[None] | None = None

    async def invite(self, stream: Stream, ask: Ask) -> Invitation:
        """Expect this life of an actor from now on, and no earlier one: a stream that the actor had is over."""
        if self._socket is None:
            self._socket = accept.listen(self._address, socket.SOCK_SEQPACKET)
            # For ever; a stranger is turned away and changes nothing.
            self._receiving = asyncio.create_task(accept.serve(self._socket, partial(self._meet, ask)))
        _, actor = stream.who
        self._dismiss(actor)
        self._lives[actor] = Life(stream)
        return Invitation(self._address, self._token.hex())

    async def close(self) -> None:
        for actor in self._lives:
            self._dismiss(actor)
        if self._socket is not None and self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
            self._socket.close()

    def _dismiss(self, actor: int) -> None:
        life = self._lives.get(actor)
        if life is not None and life.desk is not None:
            life.desk.leave()

    async def _meet(self, ask: Ask, guest: socket.socket) -> None:
        try:
            hello = await asyncio.get_running_loop().sock_recv(guest, _HELLO_BYTES)
            life = self._greet(hello)
            life.desk = Desk(guest, self._layout, life.stream, ask)
        except Malformed as refusal:
            with suppress(OSError):
                guest.send(f"{refusal}".encode())
            guest.close()
        except BaseException:  # too late, or no memory for it: it is not refused, and may come again
            guest.close()
            raise

    def _greet(self, hello: bytes) -> Life:
        """Whose stream it is."""
        token, said = hello[:TOKEN_BYTES], hello[TOKEN_BYTES:]
        if not hmac.compare_digest(token, self._token):
            raise Malformed("the token of the run is missing or wrong")
        who = read_hello(said)
        life = self._lives.get(who.actor)
        if life is None or life.stream.incarnation != who.incarnation:
            raise Malformed(f"no such life of actor {who.actor} is expected")
        if who.layout != str(self._layout):
            raise Malformed(f"actor {who.actor} has {who.layout}; this server takes {self._layout}")
        if life.desk is not None and not life.desk.left:
            raise Malformed(f"actor {who.actor} has a stream already")
        return life


class Desk:
    """One actor's stream."""

    def __init__(self, guest: socket.socket, layout: Layout, stream: Stream, ask: Ask) -> None:
        self.left = False
        self._socket, self._stream, self._ask = guest, stream, ask
        self._questions: dict[int, Question] = {}
        memory = os.memfd_create("thespis-inference", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, Page.size(layout))
            self._page = Page(layout, mmap.mmap(memory, 0))
            with suppress(OSError):  # who is gone already is noticed below
                socket.send_fds(guest, [WELCOME], [memory])
        finally:
            os.close(memory)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(guest, self._hear)

    def leave(self) -> None:
        """End it; nobody waits any more for what was asked."""
        if not self.left:
            self.left = True
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def say(self, message: bytes) -> None:
        with suppress(OSError):  # who is gone is noticed where its end is read
            self._socket.send(message)

    def _hear(self) -> None:
        try:
            message = self._socket.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if len(message) == QUESTION.size:
            number, start, rows, finals, usual = QUESTION.unpack(message)
            question = self._questions.get(start)
            if question is None:
                question = self._questions[start] = Question(self, self._page, start, rows)
            elif question.open:
                raise Malformed(f"environments from {start} on have asked already")
            self._ask(question.told(self._stream, number, finals, usual), question)
        elif len(message) == REMINDER.size:
            self._questions[REMINDER.unpack(message)[0]].remind()
        else:
            self.leave()


class Question:
    """What environments ask together, again and again; one at a time."""

    __slots__ = ("_desk", "_number", "_page", "_place", "_start", "_usual", "open")

    def __init__(self, desk: Desk, page: Page, start: int, rows: int) -> None:
        self._desk, self._page, self._start, self._place = desk, page, start, page.place(start, rows)
        self._number, self.open = 0, False
        self._usual = usual_flags(rows).flags

    def told(self, stream: Stream, number: int, finals: int, usual: int) -> Told:
        """What stands in the memory now. It stays there until the next question but one."""
        self._number, self.open = number, True
        seen = self._place.seen[number & 1]
        last: Tree | None = None if finals < 0 else map_tree(lambda rows: rows[:finals], seen.finals)
        return Told(stream, self._start, number, seen.obs, seen.rewards, self._usual if usual else seen.flags, last)

    @property
    def gone(self) -> bool:
        return self._desk.left

    def give(self, answer: Answer) -> None:
        place, self.open = self._place, False
        np.copyto(place.actions, answer.actions)
        np.copyto(place.logp, answer.logp)
        self._page.answer(self._start, self._number, answer.version)
        if not self._page.looked_at:
            self._desk.say(ANSWER.pack(self._number, self._start))

    def remind(self) -> None:
        """The actor has stopped looking. It is told, if it was answered when it was thought to look."""
        if not self.open:
            self._desk.say(ANSWER.pack(self._number, self._start))
