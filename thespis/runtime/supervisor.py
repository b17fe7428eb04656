"""Starts a program's processes, watches them, starts them again, asks for checkpoints, and ends the run.

The half of a supervisor that does not depend on where processes live. A runtime says how one is started and killed,
how it is asked something, and calls `_on_message` and `_on_gone` with what becomes of it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

import cloudpickle

from thespis.program import Program, RoleSpec, shared
from thespis.runtime.context import Identity, Report
from thespis.runtime.host import Start
from thespis.runtime.session import Session

_TICK_SECONDS = 0.1
_REPORT_SECONDS = 0.05
"""How stale the numbers of a process may be: from them it is decided when to stop."""
_MOST_REPORTS = 100
"""Reports a second from all processes together: with more, a hundred actors would do little else on a few cores."""
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_HALT_SECONDS, _HASTY_SAVE_SECONDS, _EXIT_SECONDS = 3.0, 4.0, 2.0
_SAVE_SECONDS = 120.0
"""A replay of gigabytes takes its time. Somebody who pressed Ctrl-C does not wait for so long."""
_EVALUATE_SECONDS = 120.0


class Member(Protocol):
    """A running process, as its supervisor sees it."""

    name: str
    up: bool
    """It has built its roles and reported: from now on it can be asked."""
    failure: tuple[str, str, bool] | None
    """What went wrong: who and what in a line, the traceback, and whether the user can mend it."""

    @property
    def ending(self) -> str:
        """How it ended, if it said nothing itself."""
        ...

    def kill(self) -> None: ...


class Supervisor:
    """Performs a program and returns when nothing of it is left."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._homes = {spec.key: spec.process for spec in program.roles}
        self._keepers = [
            home
            for home, specs in program.processes.items()
            if any(spec.kind is None or hasattr(spec.kind, "state") for spec in specs)
        ]
        self._restarts: dict[str, int] = dict.fromkeys(program.processes, 0)
        self._saving: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._born = time.monotonic()
        self._first_step: float | None = None
        self._interrupts = 0
        self._stopping = False

    # -- what a runtime provides ------------------------------------------------------------------

    @property
    def _members(self) -> Mapping[str, Member]:
        """The processes that are there, by name."""
        raise NotImplementedError

    def _start(self, home: str, restore: Path | None) -> None:
        """Start a process, tell it what to be, and join it to its neighbours. OSError: it cannot be started."""
        raise NotImplementedError

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        """Have a process do something. RuntimeError: it could not."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Look for processes that hang; called ten times a second."""

    def _places(self) -> dict[str, Any]:
        """Where the processes are, for topology.json."""
        raise NotImplementedError

    async def _dump_stacks(self) -> None:
        """Have every process write to the log what it is doing."""
        raise NotImplementedError

    def _kill(self) -> None:
        """Leave nothing."""
        raise NotImplementedError

    # -- life -------------------------------------------------------------------------------------

    def run(self, restore: Path | None) -> dict[str, Any]:
        return asyncio.run(self._run(restore))

    def _now(self) -> float:
        return self._session.clock + time.monotonic() - self._born

    async def _run(self, restore: Path | None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._interrupt, number)
        session = self._session
        try:
            for home in self._program.processes:
                self._start(home, restore)
            session.topology(self._places())
            while session.stop_reason is None:
                await asyncio.sleep(_TICK_SECONDS)
                await self._tick()
            await self._wind_down()
        finally:
            self._stopping = True
            self._kill()
        return session.finish(self._now(), None if self._first_step is None else self._first_step - self._born)

    async def _tick(self) -> None:
        session, now = self._session, self._now()
        session.tick(now)
        self._watch()
        if (self._saving is None or self._saving.done()) and not self._absent() and session.save_due(now):
            self._saving = asyncio.get_running_loop().create_task(self._save())
        up = self._up()
        stalled = session.stalled(now, [home for home in self._program.processes if home not in up])
        if stalled is not None and session.stop_reason is None:
            await self._dump_stacks()
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
        for member in self._members.values():
            member.kill()
        os._exit(130)

    # -- processes --------------------------------------------------------------------------------

    def _plan(self, home: str, restore: Path | None) -> Start:
        """What a process that is about to start has to know."""
        specs = self._program.processes[home]
        return Start(
            path=[path or str(Path.cwd()) for path in sys.path],
            roles=cloudpickle.dumps(specs),
            identities=[self._identity(spec) for spec in specs],
            homes=self._homes,
            forwarders=frozenset(spec.key for spec in self._program.roles if self._forwards(spec)),
            restore=restore,
            report_seconds=max(_REPORT_SECONDS, len(self._homes) / _MOST_REPORTS),
        )

    def _forwards(self, spec: RoleSpec) -> bool:
        """Whether it only passes things on; one of its own process takes them from it as they are."""
        callers = (caller.process for caller, _ in self._program.incoming(*spec.key))
        return getattr(spec.kind, "FORWARDS", False) and spec.process not in callers

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

    def _on_message(self, member: Member, message: Any) -> None:
        """What a process says of itself: reports, or that it failed."""
        kind, *rest = message
        if kind == "reports":
            if not member.up:
                member.up = True
                self._session.came_up(self._now())
            for report in rest[0]:
                self._on_report(report)
        elif kind == "error":
            member.failure = tuple(rest)

    def _on_report(self, report: Report) -> None:
        if self._first_step is None and report.counters.get("env_steps"):
            self._first_step = time.monotonic()
        self._session.receive(report, self._now())

    def _on_gone(self, member: Member) -> None:
        """It has ended: start it again if its roles allow, else end the run with the error, told once."""
        if self._stopping or self._session.stop_reason is not None:
            if member.failure is not None and self._session.stop_reason != "error":  # which has been told
                what, trace, _ = member.failure
                self._session.log(f"{what}, at the end of the run")
                self._session.log(trace, show=False)
            return
        specs = self._program.processes[member.name]
        roles = ", ".join(map(str, specs))
        who = roles if len(specs) == 1 else f"{member.name} ({roles})"
        what, trace, blame_user = member.failure or (f"{who} {member.ending}", "", False)
        done = self._restarts[member.name]
        if blame_user or done >= shared(specs):
            after = f" (after {done} restarts)" if done else ""
            self._session.end("error", what + after + (f"\n\n{trace.rstrip()}" if trace else ""), blame_user=blame_user)
            return
        if trace:
            self._session.log(trace, show=False)
        self._restarts[member.name] += 1
        for spec in specs:
            self._session.restarted(spec)
        delay = _BACK_OFF[min(done, len(_BACK_OFF) - 1)]
        self._session.log(f"{what}; restarting in {delay:g} s ({done + 1} of {shared(specs)})")
        asyncio.get_running_loop().call_later(delay, self._restart, member.name)

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
        for spec in self._program.processes[home]:
            self._session.reverted(spec, restore)
        try:
            self._start(home, restore)
            self._session.topology(self._places())
        except OSError as error:
            self._session.end("error", f"{home} cannot be started again: {error}")

    # -- asking -----------------------------------------------------------------------------------

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
        return [home for home, member in self._members.items() if member.up]

    def _absent(self) -> list[str]:
        """Processes with something to keep that cannot be asked for it now. A checkpoint without them would be none."""
        up = self._up()
        return [home for home in self._keepers if home not in up]

    async def _save(self, seconds: float = _SAVE_SECONDS) -> None:
        """Every role with a state writes it into one staging directory, which then becomes a checkpoint."""
        session = self._session
        staging: Path | None = None
        try:
            if self._absent():
                raise RuntimeError(f"{', '.join(self._absent())} is not running")
            staging = session.checkpoints.stage()
            for answer in await self._ask_all(self._keepers, "save", str(staging), seconds=seconds):
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
        self._drop_late()
        late = self._absent()
        await self._ask_all(self._up(), "halt", seconds=_HALT_SECONDS)
        hasty = crashed or session.stop_reason == "interrupted"
        if self._saving is not None:
            if hasty:
                self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        if late and not hasty:
            await self._all_up()
            await self._ask_all(self._up(), "halt", seconds=_HALT_SECONDS)
        if session.monitor.updates:
            await self._save(_HASTY_SAVE_SECONDS if hasty else _SAVE_SECONDS)
        if not crashed and session.stop_reason != "interrupted":
            self._judging = asyncio.create_task(self._evaluate())
            await asyncio.gather(self._judging, return_exceptions=True)
        await self._ask_all(self._up(), "exit", seconds=_EXIT_SECONDS)

    def _drop_late(self) -> None:
        """Who is not up yet would begin to work after the end; some have something to keep, or are to judge it."""
        judges = {spec.process for spec in self._program.roles if hasattr(spec.kind, "evaluate")}
        for home, member in self._members.items():
            if not member.up and home not in judges and home not in self._keepers:
                member.kill()

    async def _all_up(self) -> None:
        """A short run can be over before all its processes are up, and what they keep belongs to a checkpoint."""
        deadline = self._now() + _SAVE_SECONDS
        while (absent := self._absent()) and all(home in self._members for home in absent):
            if self._now() > deadline or self._interrupts:
                return
            await asyncio.sleep(0.05)

    async def _evaluate(self) -> None:
        for spec in self._program.roles:
            if hasattr(spec.kind, "evaluate") and spec.process in self._members:
                gone = [home for home in self._neighbours(spec.process) if home not in self._members]
                if gone:
                    self._session.log(f"no final evaluation: {', '.join(gone)} ended before it")
                    continue
                try:
                    await asyncio.wait_for(self._ask(spec.process, "do", spec.key, "evaluate"), _EVALUATE_SECONDS)
                except (TimeoutError, RuntimeError) as error:
                    self._session.log(f"final evaluation failed: {error}")
