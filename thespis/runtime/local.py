"""The local runtime: one process per role (or per group that shares one), watched by a supervisor.

The supervisor starts, watches and stops. It makes the shared memory and the sockets, both without names in any
file system, and hands them out as descriptors: whatever ends the run, the kernel takes everything back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from thespis.program import Program, RoleSpec, shared
from thespis.runtime.child import Start
from thespis.runtime.context import Identity, Report
from thespis.runtime.process import Child, spawn
from thespis.runtime.session import Session

_TICK_SECONDS = 0.1
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_HALT_SECONDS, _SAVE_SECONDS, _EXIT_SECONDS = 3.0, 4.0, 2.0
_EVALUATE_SECONDS = 120.0


class Supervisor:
    """Performs a program on this machine and returns when nothing of it is left."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._homes = {spec.key: spec.process for spec in program.roles}
        self._keepers = [
            home
            for home, specs in program.processes.items()
            if any(spec.kind is None or hasattr(spec.kind, "state") for spec in specs)
        ]
        self._children: dict[str, Child] = {}
        self._restarts: dict[str, int] = dict.fromkeys(program.processes, 0)
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._saving: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._born = time.monotonic()
        self._first_step: float | None = None
        self._interrupts = 0
        self._stopping = False
        self._log = session.run.log.open("ab")

    def run(self, restore: Path | None) -> dict[str, Any]:
        return asyncio.run(self._run(restore))

    def _now(self) -> float:
        return self._session.clock + time.monotonic() - self._born

    # -- life -------------------------------------------------------------------------------------

    async def _run(self, restore: Path | None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._interrupt, number)
        session = self._session
        try:
            for home in self._program.processes:
                self._start(home, restore)
            session.topology({"pids": {name: child.process.pid for name, child in self._children.items()}})
            while session.stop_reason is None:
                await asyncio.sleep(_TICK_SECONDS)
                self._tick()
            await self._wind_down()
        finally:
            self._stopping = True
            self._kill()
            self._log.close()
        return session.finish(self._now(), None if self._first_step is None else self._first_step - self._born)

    def _tick(self) -> None:
        session, now = self._session, self._now()
        session.tick(now)
        for child in list(self._children.values()):
            stuck = child.status.stuck(session.cfg.env_timeout)
            if stuck is not None and child.failure is None:
                child.failure = (f"{child.name.replace('-', ' ')}: EnvError: {stuck}", "", False)
                child.kill()
        if (self._saving is None or self._saving.done()) and not self._absent() and session.save_due(now):
            self._saving = asyncio.get_running_loop().create_task(self._save())
        stalled = session.stalled(now)
        if stalled is not None and session.stop_reason is None:
            for child in self._children.values():
                child.process.send_signal(signal.SIGUSR1)
            session.end("stalled", f"{stalled}. The stacks of all processes are in {session.run.log}")

    def _interrupt(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._leave_at_once()
        self._session.end("interrupted")
        if self._judging is not None:
            self._judging.cancel()

    def _leave_at_once(self) -> NoReturn:
        self._session.screen.close()
        for child in self._children.values():
            child.kill()
        os._exit(130)

    # -- processes --------------------------------------------------------------------------------

    def _start(self, home: str, restore: Path | None) -> None:
        """Start a process, tell it what to be, and join it to its neighbours."""
        specs = self._program.processes[home]
        child = spawn(home, self._log)
        identities = [self._identity(spec) for spec in specs]
        start = Start(
            path=[path or str(Path.cwd()) for path in sys.path],
            roles=cloudpickle.dumps(specs),
            identities=identities,
            homes=self._homes,
            forwarders=frozenset(spec.key for spec in self._program.roles if getattr(spec.kind, "FORWARDS", False)),
            restore=restore,
        )
        child.control.send(("start", start))
        for neighbour in self._neighbours(home):
            if neighbour in self._children:
                self._join(child, self._children[neighbour])
        self._children[home] = child
        loop = asyncio.get_running_loop()
        child.control.listen(loop, lambda message, _: self._on_message(child, message))
        loop.add_reader(child.pidfd, self._on_exit, child)

    def _identity(self, spec: RoleSpec) -> Identity:
        return Identity(
            role=spec.role,
            index=spec.index,
            run_seed=self._session.cfg.seed,
            generation=self._session.generation,
            restarts=self._restarts[spec.process],
            epoch=self._session.epoch(spec),
            incarnation=secrets.randbits(62),
        )

    def _neighbours(self, home: str) -> list[str]:
        """The processes that call this one or that it calls."""
        pairs = {
            (spec.process, self._homes[edge.service, edge.index]) for spec in self._program.roles for edge in spec.edges
        }
        return [
            other
            for other in self._program.processes
            if other != home and ((home, other) in pairs or (other, home) in pairs)
        ]

    def _join(self, one: Child, other: Child) -> None:
        left, right = socket.socketpair()
        with left, right:
            one.control.send(("peer", other.name), [left.fileno(), other.arena])
            other.control.send(("peer", one.name), [right.fileno(), one.arena])

    def _on_message(self, child: Child, message: Any) -> None:
        if message is None:
            return
        kind, *rest = message
        if kind == "reports":
            child.up = True
            for report in rest[0]:
                self._on_report(report)
        elif kind == "error":
            child.failure = tuple(rest)
        elif kind == "answer":
            number, result, error = rest
            _, future = self._answers.get(number, (child.name, None))
            if future is not None and not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(RuntimeError(error))

    def _on_report(self, report: Report) -> None:
        if self._first_step is None and report.counters.get("env_steps"):
            self._first_step = time.monotonic()
        self._session.receive(report, self._now())

    def _on_exit(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        for message, _ in _remaining(child):
            self._on_message(child, message)
        loop.remove_reader(child.control.socket.fileno())
        child.release()
        if self._children.get(child.name) is child:
            del self._children[child.name]
        for home, future in self._answers.values():
            if home == child.name and not future.done():
                future.set_exception(RuntimeError(f"{child.name} {child.ending}"))
        if not self._stopping and self._session.stop_reason is None:
            self._on_failure(child)

    def _on_failure(self, child: Child) -> None:
        """Start it again if its roles allow, else end the run with the error, told once."""
        specs = self._program.processes[child.name]
        what, trace, blame_user = child.failure or (f"{' and '.join(map(str, specs))} {child.ending}", "", False)
        done = self._restarts[child.name]
        if blame_user or done >= shared(specs):
            after = f" (after {done} restarts)" if done else ""
            self._session.end("error", what + after + (f"\n\n{trace.rstrip()}" if trace else ""), blame_user=blame_user)
            return
        if trace:
            self._session.log(trace, show=False)
        self._restarts[child.name] += 1
        for spec in specs:
            self._session.restarted(spec)
        delay = _BACK_OFF[min(done, len(_BACK_OFF) - 1)]
        self._session.log(f"{what}; restarting in {delay:g} s ({done + 1} of {shared(specs)})")
        asyncio.get_running_loop().call_later(delay, self._restart, child.name)

    def _restart(self, home: str) -> None:
        if self._stopping or self._session.stop_reason is not None:
            return
        restore = None
        if any(hasattr(spec.kind, "restore") for spec in self._program.processes[home]):
            found = self._session.checkpoints.newest_valid()
            for skipped in found.skipped:
                self._session.log(f"skipped {skipped}")
            restore = found.path
            self._session.log(f"{home} resumes from {restore.name}" if restore else f"{home} has no checkpoint yet")
        try:
            self._start(home, restore)
        except OSError as error:
            self._session.end("error", f"{home} cannot be started again: {error}")

    # -- asking -----------------------------------------------------------------------------------

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._answers[number] = home, future
        try:
            self._children[home].control.send((kind, number, *args))
            return await future
        finally:
            del self._answers[number]

    async def _ask_all(self, homes: list[str], kind: str, *args: Any, seconds: float) -> list[Any]:
        """Ask several processes; those that do not answer in time count as failed."""
        tasks = [asyncio.create_task(self._ask(home, kind, *args)) for home in homes]
        if not tasks:
            return []
        done, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        failed = [TimeoutError(f"{kind}: no answer within {seconds:g} s")] * len(late)
        return [*failed, *(task.exception() or task.result() for task in done)]

    def _up(self) -> list[str]:
        return [home for home, child in self._children.items() if child.up]

    def _absent(self) -> list[str]:
        """Processes with something to keep that cannot be asked for it now. A checkpoint without them would be none."""
        up = self._up()
        return [home for home in self._keepers if home not in up]

    async def _save(self) -> None:
        """Every role with a state writes it into one staging directory, which then becomes a checkpoint."""
        session = self._session
        staging: Path | None = None
        try:
            if self._absent():
                raise RuntimeError(f"{', '.join(self._absent())} is not running")
            staging = session.checkpoints.stage()
            for answer in await self._ask_all(self._keepers, "save", str(staging), seconds=_SAVE_SECONDS):
                if isinstance(answer, BaseException):
                    raise answer
            session.commit(staging, self._now())
        except asyncio.CancelledError:
            if staging is not None:
                session.checkpoints.discard(staging)
            raise
        except Exception as error:
            session.save_failed(staging, error)

    async def _wind_down(self) -> None:
        """Stop the workers, keep what they learned, judge it, let everybody close."""
        session = self._session
        crashed = session.stop_reason in ("error", "stalled")
        await self._ask_all(self._up(), "halt", seconds=_HALT_SECONDS)
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        if session.monitor.updates:
            await self._save()
        if not crashed and session.stop_reason != "interrupted":
            self._judging = asyncio.create_task(self._evaluate())
            await asyncio.gather(self._judging, return_exceptions=True)
        await self._ask_all(self._up(), "exit", seconds=_EXIT_SECONDS)

    async def _evaluate(self) -> None:
        for spec in self._program.roles:
            if hasattr(spec.kind, "evaluate") and spec.process in self._children:
                try:
                    await asyncio.wait_for(self._ask(spec.process, "do", spec.key, "evaluate"), _EVALUATE_SECONDS)
                except (TimeoutError, RuntimeError) as error:
                    self._session.log(f"final evaluation failed: {error}")

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.release()
        self._children.clear()


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
