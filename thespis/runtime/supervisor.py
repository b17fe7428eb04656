"""Starts a program's processes, watches them, starts them again, asks for checkpoints, and ends the run.

The half of a supervisor that does not depend on where processes live. A runtime says how one is started and killed,
how it is asked something, and calls `_on_message` and `_on_gone` with what becomes of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from thespis.core.context import Report
from thespis.core.errors import ThespisError
from thespis.core.program import Program, shared
from thespis.core.service import describe
from thespis.runtime.capacity import explain
from thespis.runtime.checkpointing import SAVE_SECONDS, Checkpointer
from thespis.runtime.host import Start
from thespis.runtime.layout import Layout
from thespis.runtime.member import Member
from thespis.runtime.session import Session
from thespis.runtime.signals import handled

_TICK_SECONDS = 0.1
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_HALT_SECONDS, _EXIT_SECONDS = 3.0, 2.0
_HASTY_SAVE_SECONDS = 4.0
"""How long processes may take to save when somebody has pressed Ctrl-C."""
_EVALUATE_SECONDS = 120.0
_LATE_SECONDS = 60.0
"""How long the end of a run waits for processes that are just starting."""
_ASLEEP_SECONDS = 5.0
"""A gap this long between two ticks means that the supervisor itself was stopped."""


class Supervisor:
    """Performs a program and returns when nothing of it is left."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._layout = Layout(program, session)
        self._checkpointer = Checkpointer(session, self._layout, self._ask, self._up, self._now)
        self._needed: set[str] = set()
        """Processes without which the final evaluation that is under way cannot end."""
        self._restarts: dict[str, int] = dict.fromkeys(program.processes, 0)
        self._files = ThreadPoolExecutor(1, "files")
        """Writes small files with fsync, in order, and never waits for a checkpoint."""
        self._background: set[asyncio.Task[None]] = set()
        self._judging: asyncio.Task[None] | None = None
        self._born = self._ticked = time.monotonic()
        self._first_step: float | None = None
        self._interrupts = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what a runtime provides ------------------------------------------------------------------

    @property
    def _members(self) -> Mapping[str, Member]:
        """The processes that are there, by name."""
        raise NotImplementedError

    def _start(self, home: str, plan: Start) -> None:
        """Start a process, tell it what to be, and join it to its neighbours. OSError: it cannot be started."""
        raise NotImplementedError

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        """Have a process do something. RuntimeError: it could not."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Look for processes that hang; called ten times a second."""

    def _settle_steps(self) -> None:
        """Count the steps that nobody has reported, now that no more are taken: the last checkpoint tells them all."""

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
        self._loop, session = asyncio.get_running_loop(), self._session
        with handled(lambda number: self._call(lambda: self._interrupt(number))):
            try:
                await self._start_all(restore)
                while session.stop_reason is None:
                    await asyncio.sleep(_TICK_SECONDS)
                    await self._tick()
                await self._end()
            finally:
                self._stopping = True
                self._kill()
                await self._checkpointer.close()
                await asyncio.to_thread(self._files.shutdown)
            startup = None if self._first_step is None else self._first_step - self._born
            return await asyncio.to_thread(session.finish, self._now(), startup)

    async def _start_all(self, restore: Path | None) -> None:
        try:
            plans = {}
            for home in self._program.processes:
                plans[home] = await self._plan(home, restore)
            for home, plan in plans.items():
                self._start(home, plan)
                if restore is not None:
                    self._session.checkpoints.reserve(home, restore)
        except OSError as error:
            self._session.end("error", f"{home} cannot be started: {explain(error, self._program)}", blame_user=True)
        await self._write_topology()

    async def _plan(self, home: str, restore: Path | None) -> Start:
        """What a process that is about to start has to know. Its epochs are on the disk then."""
        restarts = self._restarts[home]
        return await asyncio.get_running_loop().run_in_executor(
            self._files, self._layout.start, home, restarts, restore
        )

    async def _write_topology(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._files, self._session.topology, self._places())
        except OSError as error:
            self._session.topology_failed(error)

    async def _tick(self) -> None:
        session, now = self._session, self._now()
        slept, self._ticked = time.monotonic() - self._ticked, time.monotonic()
        if slept > _ASLEEP_SECONDS:
            session.came_up(now)  # nobody could be heard meanwhile, so nobody has stalled
        session.tick(now)
        self._watch()
        self._checkpointer.save_if_due(now)
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

    def interrupt(self) -> None:
        """End as Ctrl-C does, from another thread."""
        self._interrupts = 1
        self._session.end("interrupted")
        self._call(lambda: self._judging and self._judging.cancel())

    def abandon(self) -> None:
        """Kill all processes, from another thread: whatever the end of the run waits for then fails at once."""
        self._call(self._kill_members)

    def _kill_members(self) -> None:
        for member in self._members.values():
            member.kill()

    def _call(self, function: Callable[[], Any]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(function)

    def _leave_at_once(self) -> NoReturn:
        self._session.screen.close()
        self._kill_members()
        os._exit(130)

    # -- processes --------------------------------------------------------------------------------

    def _on_message(self, member: Member, message: Any) -> None:
        """What a process says of itself: reports, or that it failed."""
        kind, *rest = message
        if kind == "reports":
            if not member.up:
                member.up = True
                self._session.checkpoints.release(member.name)
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
        if self._over:
            if self._judging is not None and member.name in self._needed:
                self._session.log(f"no final evaluation: {member.name} {member.ending} meanwhile")
                self._judging.cancel()
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
        self._in_background(self._restart(member.name, delay))

    async def _restart(self, home: str, delay: float) -> None:
        """Start a process again after a while; later, while there is no room for it."""
        await asyncio.sleep(delay)
        try:
            await self._start_again(home)
        except OSError as error:  # a full disk, or no descriptor left; either may pass
            delay = _BACK_OFF[-1]
            self._session.log(f"{home} cannot be started again ({error}); trying again in {delay:g} s")
            self._in_background(self._restart(home, delay))
        except ThespisError as error:
            self._session.end("error", f"{home} cannot be started again: {error}", blame_user=True)

    async def _start_again(self, home: str) -> None:
        """Start a process from the newest checkpoint, unless the run ends before that is found."""
        session, specs, restore = self._session, self._program.processes[home], None
        if self._over:
            return
        if any(hasattr(spec.kind, "restore") for spec in specs):
            found = await self._checkpointer.reserve_newest(home)
            if self._over:
                return
            for skipped in found.skipped:
                session.log(f"skipped {skipped}")
            restore = found.path
            session.log(f"{home} resumes from {restore.name}" if restore else f"{home} has no checkpoint yet")
        plan = await self._plan(home, restore)
        if self._over:
            return
        for spec in specs:
            session.reverted(spec, restore)
        self._start(home, plan)
        await self._write_topology()

    @property
    def _over(self) -> bool:
        """Whether the run is ending, so that no process is started any more."""
        return self._stopping or self._session.stop_reason is not None

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- asking -----------------------------------------------------------------------------------

    async def _ask_all(self, homes: list[str], kind: str, *args: Any, seconds: float) -> None:
        """Ask several processes, and wait until they have answered, ended, or been late."""
        tasks = [asyncio.create_task(self._ask(home, kind, *args)) for home in homes]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _up(self) -> list[str]:
        return [home for home, member in self._members.items() if member.up]

    async def _end(self) -> None:
        """Wind down while stopped processes are made to go on, so that they cannot hold up the end."""
        winding = asyncio.create_task(self._wind_down())
        while not winding.done():
            self._watch()
            await asyncio.wait({winding}, timeout=_TICK_SECONDS)
        winding.result()

    async def _wind_down(self) -> None:
        """Stop the workers, save what they learned, evaluate it, let everybody close."""
        session = self._session
        crashed = session.stop_reason in ("error", "stalled")
        self._drop_late()
        absent = [home for home in self._program.processes if home not in self._up()]
        await self._ask_all(self._up(), "halt", seconds=_HALT_SECONDS)
        hasty = crashed or session.stop_reason == "interrupted"
        await self._checkpointer.settle(hasty=hasty)
        if absent and not hasty:
            await self._all_up()
            await self._ask_all(self._up(), "halt", seconds=_HALT_SECONDS)
        self._settle_steps()
        seconds = _HASTY_SAVE_SECONDS if hasty else SAVE_SECONDS
        if session.monitor.env_steps and not await self._checkpointer.save(seconds):
            session.end_unsaved()
        if not hasty:
            self._judging = asyncio.create_task(self._evaluate(absent))
            await asyncio.gather(self._judging, return_exceptions=True)
            self._judging = None  # a process that ends from here on cancels nothing
        await self._ask_all(self._up(), "exit", seconds=_EXIT_SECONDS)

    def _drop_late(self) -> None:
        """Who is not up yet would begin to work after the end; some have something to keep, or are to judge it."""
        judges = {spec.process for spec in self._program.roles if describe(spec.kind).evaluates}
        for home, member in self._members.items():
            if not member.up and home not in judges and home not in self._layout.stateful:
                member.kill()

    async def _all_up(self) -> None:
        """A short run can be over before all its processes are up, and what they keep belongs to a checkpoint."""
        deadline = self._now() + _LATE_SECONDS
        while any(home in self._members for home in self._checkpointer.absent()):
            if self._now() > deadline or self._interrupts:
                return
            await asyncio.sleep(0.05)

    async def _evaluate(self, absent: list[str]) -> None:
        """Have the evaluators evaluate, where those that hold the weights ran to the end.

        `absent`: processes that were not up when the run ended. One that has started since holds no weights yet. A
        restarted service has none either if the owner of the weights is gone: an evaluator would wait for them in vain.
        """
        for spec in self._program.roles:
            if not describe(spec.kind).evaluates:
                continue
            needed = self._layout.neighbours(spec.process)
            if any(self._restarts[home] for home in needed):
                needed = [*needed, *self._layout.weight_holders.difference(needed)]
            gone = [home for home in needed if home in absent or home not in self._members]
            if spec.process not in self._up():
                gone.append(spec.process)
            if gone:
                self._session.log(f"no final evaluation: {', '.join(gone)} was not running at the end")
                continue
            self._needed = {*needed}
            try:
                await asyncio.wait_for(self._ask(spec.process, "do", spec.key, "evaluate"), _EVALUATE_SECONDS)
            except (TimeoutError, RuntimeError) as error:
                self._session.log(f"final evaluation failed: {error}")
