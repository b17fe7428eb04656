"""The local runtime: one process per role (or per group that shares one) on this machine.

The supervisor makes the shared memory and the sockets, both without names in any file system, and hands them
out as descriptors: whatever ends the run, the kernel takes everything back.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thespis.program import Program
from thespis.runtime.process import Child, spawn
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor


class LocalSupervisor(Supervisor):
    """Processes that are children of this one."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self._children: dict[str, Child] = {}
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._log = session.run.log.open("ab")

    @property
    def _members(self) -> Mapping[str, Child]:
        return self._children

    def _start(self, home: str, restore: Path | None) -> None:
        child = spawn(home, self._log)
        child.control.send(("start", self._plan(home, restore)))
        for neighbour in self._neighbours(home):
            if neighbour in self._children:
                _join(child, self._children[neighbour])
        self._children[home] = child
        loop = asyncio.get_running_loop()
        child.control.listen(loop, lambda message, _: self._on_control(child, message))
        loop.add_reader(child.pidfd, self._on_exit, child)

    def _on_control(self, child: Child, message: Any) -> None:
        if message is None:
            return
        kind, *rest = message
        if kind != "answer":
            self._on_message(child, message)
            return
        number, result, error = rest
        _, future = self._answers.get(number, (child.name, None))
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(RuntimeError(error))

    def _on_exit(self, child: Child) -> None:
        if child.control.socket.fileno() < 0:
            return  # everything was ended and released in the turn in which its end was noticed
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        for message, _ in _remaining(child):
            self._on_control(child, message)
        loop.remove_reader(child.control.socket.fileno())
        child.release()
        if self._children.get(child.name) is child:
            del self._children[child.name]
        for home, future in self._answers.values():
            if home == child.name and not future.done():
                future.set_exception(RuntimeError(f"{child.name} {child.ending}"))
        self._on_gone(child)

    def _watch(self) -> None:
        for child in list(self._children.values()):
            stuck = child.status.stuck(self._session.cfg.env_timeout)
            if stuck is not None and child.failure is None:
                child.failure = (f"{child.name.replace('-', ' ')}: EnvError: {stuck}", "", False)
                child.kill()

    def _places(self) -> dict[str, Any]:
        return {"pids": {name: child.process.pid for name, child in self._children.items()}}

    async def _dump_stacks(self) -> None:
        for child in self._children.values():
            child.process.send_signal(signal.SIGUSR1)

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._answers[number] = home, future
        try:
            self._children[home].control.send((kind, number, *args))
            return await future
        finally:
            del self._answers[number]

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.release()
        self._children.clear()
        self._log.close()


def _join(one: Child, other: Child) -> None:
    """Give two processes a socket to each other, and each the other's shared memory."""
    left, right = socket.socketpair()
    with left, right:
        one.control.send(("peer", other.name), [left.fileno(), other.arena])
        other.control.send(("peer", one.name), [right.fileno(), one.arena])


def _remaining(child: Child) -> list[tuple[Any, list[int]]]:
    """What a child that has ended had still said."""
    messages: list[tuple[Any, list[int]]] = []
    try:
        while True:
            more = child.control.receive()
            if not more:
                return messages
            messages += more
    except EOFError:
        return messages
