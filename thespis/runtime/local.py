"""The local runtime: one process per role (or per group that shares one) on this machine.

The supervisor makes the shared memory and the sockets, both without names in any file system, and hands them
out as descriptors: whatever ends the run, the kernel takes everything back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thespis.core.context import Report
from thespis.core.program import Program
from thespis.core.step_count import StepCount, shared_steps
from thespis.core.system.reaper import guarded
from thespis.runtime.host import Start
from thespis.runtime.member import Gone
from thespis.runtime.process import RUN_MARK, Child, spawn
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor

_LOOK_SECONDS = 1.0
"""How often processes are looked at that a signal may have stopped."""
_STOPPED_SECONDS = 10.0
"""How long a process may stay stopped before it is replaced."""


class LocalSupervisor(Supervisor):
    """Processes that are children of this one."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self._children: dict[str, Child] = {}
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._log = session.run.log.open("ab")
        self._mark = uuid.uuid4().hex
        self._looked = 0.0
        self._numbered = {home: number for number, home in enumerate(program.processes)}
        self._step_memory = shared_steps(session.steps_left, len(self._numbered))
        self._steps = StepCount.map(self._step_memory, 0)
        session.steps = None if session.steps_left is None else self._steps
        self._reported = dict.fromkeys(self._numbered, 0)
        self._settled = False

    @property
    def _members(self) -> Mapping[str, Child]:
        return self._children

    def run(self, restore: Path | None) -> dict[str, Any]:
        # Environments start processes, too, which the kernel does not kill together with their parents.
        with guarded(RUN_MARK, self._mark):
            return super().run(restore)

    def _start(self, home: str, plan: Start) -> None:
        loop = asyncio.get_running_loop()
        child = spawn(home, self._log, self._mark, loop, self._step_memory, self._numbered[home])
        child.control.send(("start", plan))
        for neighbour in self._layout.neighbours(home):
            if neighbour in self._children:
                _join(child, self._children[neighbour])
        self._children[home] = child
        child.control.listen(loop, lambda message, _: self._on_control(child, message))
        loop.add_reader(child.pidfd, self._on_exit, child)

    def _on_control(self, child: Child, message: Any) -> None:
        if message is None:
            return
        kind, *rest = message
        if kind == "reports":
            self._check_off(child.name, rest[0])
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
        self._settle(child.name)
        child.release()
        child.kill_descendants()
        if child.status.closing and child.failure is None:
            child.failure = (f"{child.name.replace('-', ' ')} {child.ending}", "", False)
        if self._children.get(child.name) is child:
            del self._children[child.name]
        for home, future in self._answers.values():
            if home == child.name and not future.done():
                future.set_exception(Gone(f"{child.name} {child.ending}"))
        self._on_gone(child)

    def _check_off(self, home: str, reports: list[Report]) -> None:
        for report in reports:
            self._reported[home] += report.counters.get("env_steps", 0)
            if self._settled:
                report.counters.pop("env_steps", None)  # it was counted before it was reported

    def _settle(self, home: str) -> None:
        """Count the steps that a process took and did not live to report."""
        unreported = self._steps.of(self._numbered[home]) - self._reported[home]
        if unreported > 0 and not self._settled:
            self._reported[home] += unreported
            self._session.monitor.took(unreported)

    def _settle_steps(self) -> None:
        for home in self._numbered:
            self._settle(home)
        self._settled = True

    def _watch(self) -> None:
        now = self._now()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            for child in list(self._children.values()):
                self._look(child, now)
        for child in list(self._children.values()):
            stuck = child.status.stuck(self._session.cfg.env_timeout)
            # The time of a stopped process stands still, so it is not stuck.
            if stuck is not None and child.failure is None and child.stopped_since is None:
                child.failure = (f"{child.name.replace('-', ' ')}: EnvError: {stuck}", "", False)
                child.kill()

    def _look(self, child: Child, now: float) -> None:
        """Name a process that a signal has stopped, and replace it unless it goes on. At the end, let it go on."""
        ending, pid = self._session.stop_reason is not None, child.process.pid
        if not child.stopped:
            if child.stopped_since is not None:
                self._session.log(f"{child.name} goes on")
            child.stopped_since = None
            return
        if ending:
            os.kill(pid, signal.SIGCONT)  # it has something to save, or to close
        if child.stopped_since is None:
            child.stopped_since = now
            what = (
                "continued it to end it"
                if ending
                else f"unless it goes on (kill -CONT {pid}), it is replaced in {_STOPPED_SECONDS:g} s"
            )
            self._session.log(f"{child.name} (pid {pid}) was stopped by a signal; {what}")
        elif now - child.stopped_since >= _STOPPED_SECONDS and child.failure is None:
            child.failure = (f"{child.name} was stopped by a signal for {_STOPPED_SECONDS:g} s", "", False)
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
            if child.status.closing:
                self._session.log(f"{child.name.replace('-', ' ')}: {child.status.place} did not return at the end")
            child.kill()  # what they started in sessions of their own is left to the guard
        for child in self._children.values():
            child.release()
        self._settle_steps()  # if the end was not reached
        self._children.clear()
        self._log.close()
        os.close(self._step_memory)


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
