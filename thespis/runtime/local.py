"""The local runtime: one process per role, or per group of roles, on this machine.

The supervisor creates the shared memory and the sockets without names in any file system and passes them as
descriptors. However the run ends, the kernel frees them.
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
from thespis.core.system.reaper import RUN_MARK, reaped
from thespis.runtime.managed_process import ProcessExited
from thespis.runtime.process import Child, spawn
from thespis.runtime.role_process import StartCommand
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor

_CHECK_SECONDS = 1.0
"""Interval between two checks for processes stopped by a signal."""
_STOPPED_SECONDS = 10.0
"""How long a process may stay stopped before it is replaced."""


class LocalSupervisor(Supervisor):
    """Runs the processes of a program as children of this one."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self._children: dict[str, Child] = {}
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._log = session.run.log.open("ab")
        self._mark = uuid.uuid4().hex
        self._checked = 0.0
        self._ending_since: float | None = None
        self._indices = {name: number for number, name in enumerate(program.processes)}
        self._step_memory = shared_steps(session.steps_left, len(self._indices))
        self._steps = StepCount.map(self._step_memory, 0)
        session.steps = None if session.steps_left is None else self._steps
        self._reported = dict.fromkeys(self._indices, 0)
        self._all_counted = False

    @property
    def _processes(self) -> Mapping[str, Child]:
        return self._children

    def run(self, restore: Path | None) -> dict[str, Any]:
        """Run the program; at the end, kill all descendants of its processes."""
        # Environments may start processes. The kernel does not kill those with their parents.
        with reaped(RUN_MARK, self._mark):
            return super().run(restore)

    def _start(self, name: str, plan: StartCommand) -> None:
        loop = asyncio.get_running_loop()
        child = spawn(name, self._log, self._mark, loop, self._step_memory, self._indices[name])
        child.control.send(("start", plan))
        for neighbour in self._layout.neighbours(name):
            if neighbour in self._children:
                _connect(child, self._children[neighbour])
        self._children[name] = child
        child.control.listen(loop, lambda message, _: self._on_control(child, message))
        loop.add_reader(child.pidfd, self._on_exit, child)

    def _on_control(self, child: Child, message: Any) -> None:
        if message is None:
            return
        kind, *rest = message
        if kind == "reports":
            self._count_reported(child.name, rest[0])
        if kind != "answer":
            self._on_message(child, message)
            return
        number, result, error = rest
        _, future = self._pending.get(number, (child.name, None))
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(RuntimeError(error))

    def _on_exit(self, child: Child) -> None:
        if child.control.socket.fileno() < 0:
            return  # the child was released in the same turn of the event loop
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        for message, _ in _remaining(child):
            self._on_control(child, message)
        self._count_unreported(child.name)
        child.release()
        child.kill_descendants()
        if child.status.closing and child.failure is None:
            child.failure = (f"{child.name.replace('-', ' ')} {child.ending}", "", False)
        if self._children.get(child.name) is child:
            del self._children[child.name]
        for name, future in self._pending.values():
            if name == child.name and not future.done():
                future.set_exception(ProcessExited(f"{child.name} {child.ending}"))
        self._on_ended(child)

    def _count_reported(self, name: str, reports: list[Report]) -> None:
        for report in reports:
            self._reported[name] += report.counters.get("env_steps", 0)
            if self._all_counted:
                report.counters.pop("env_steps", None)  # these steps are already counted

    def _count_unreported(self, name: str) -> None:
        """Count the steps that a process took and did not report."""
        unreported = self._steps.of(self._indices[name]) - self._reported[name]
        if unreported > 0 and not self._all_counted:
            self._reported[name] += unreported
            self._session.monitor.count_steps(unreported)

    def _count_unreported_steps(self) -> None:
        for name in self._indices:
            self._count_unreported(name)
        self._all_counted = True

    def _watch(self) -> None:
        now = self._now()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            for child in list(self._children.values()):
                self._check_stopped(child, now)
        for child in list(self._children.values()):
            stuck = child.status.stuck(self._session.cfg.env_timeout)
            # A stopped process is handled by `_check_stopped`; its environment does not hang.
            if stuck is not None and child.failure is None and child.stopped_since is None:
                child.failure = (f"{child.name.replace('-', ' ')}: EnvError: {stuck}", "", False)
                child.kill()

    def _check_stopped(self, child: Child, now: float) -> None:
        """Log a stopped process and replace it after a while. At the end of the run, continue it."""
        ending, pid = self._session.stop_reason is not None, child.process.pid
        if ending and self._ending_since is None:
            self._ending_since = now
        if not child.stopped:
            if child.stopped_since is not None:
                self._session.log(f"{child.name} continues")
            child.stopped_since = None
            return
        if ending:
            os.kill(pid, signal.SIGCONT)  # it has state to save or resources to close
        if child.stopped_since is None:
            child.stopped_since = now
            what = (
                "continued it to end it"
                if ending
                else f"unless it continues (kill -CONT {pid}), it is replaced in {_STOPPED_SECONDS:g} s"
            )
            self._session.log(f"{child.name} (pid {pid}) was stopped by a signal; {what}")
        # At the end it has just been continued, however long it was stopped before.
        elif now - max(child.stopped_since, self._ending_since or 0.0) >= _STOPPED_SECONDS and child.failure is None:
            child.failure = (f"{child.name} was stopped by a signal for {_STOPPED_SECONDS:g} s", "", False)
            child.kill()

    def _locations(self) -> dict[str, Any]:
        return {"pids": {name: child.process.pid for name, child in self._children.items()}}

    async def _dump_stacks(self) -> None:
        for child in self._children.values():
            child.process.send_signal(signal.SIGUSR1)

    async def _send_command(self, name: str, kind: str, *args: Any) -> Any:
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._pending[number] = name, future
        try:
            self._children[name].control.send((kind, number, *args))
            return await future
        finally:
            del self._pending[number]

    def _kill(self) -> None:
        for child in self._children.values():
            if child.status.closing:
                self._session.log(f"{child.name.replace('-', ' ')}: {child.status.location} did not return at the end")
            child.kill()  # the reaper kills their descendants in other sessions
        for child in self._children.values():
            child.release()
        self._count_unreported_steps()  # if the run did not reach its end
        self._children.clear()
        self._log.close()
        os.close(self._step_memory)


def _connect(one: Child, other: Child) -> None:
    """Connect two processes: a socket pair, and each other's shared memory."""
    left, right = socket.socketpair()
    with left, right:
        one.control.send(("peer", other.name), [left.fileno(), other.arena])
        other.control.send(("peer", one.name), [right.fileno(), one.arena])


def _remaining(child: Child) -> list[tuple[Any, list[int]]]:
    """Return the messages of an ended child that were not yet received."""
    messages: list[tuple[Any, list[int]]] = []
    try:
        while True:
            more = child.control.receive()
            if not more:
                return messages
            messages += more
    except EOFError:
        return messages
