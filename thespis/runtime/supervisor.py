"""Starts, watches and restarts the processes of a program, saves checkpoints, and ends the run.

This base class does not depend on where processes run. A runtime implements starting, killing and sending commands, and
calls `_on_message` and `_on_ended`.
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
from thespis.core.program import Program, restart_limit
from thespis.core.service import description_of
from thespis.runtime.capacity import explain
from thespis.runtime.checkpointing import SAVE_SECONDS, Checkpointer
from thespis.runtime.managed_process import ManagedProcess
from thespis.runtime.process_layout import ProcessLayout
from thespis.runtime.role_process import StartCommand
from thespis.runtime.session import Session
from thespis.runtime.signals import handled

_TICK_SECONDS = 0.1
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_HALT_SECONDS, _EXIT_SECONDS = 3.0, 2.0
_HASTY_SAVE_SECONDS = 4.0
"""Time limit for saving after Ctrl-C or an error."""
_EVALUATE_SECONDS = 120.0
_LATE_SECONDS = 60.0
"""How long the end of a run waits for processes that are still starting."""
_STOPPED_SECONDS = 5.0
"""A gap of this length between two ticks means that the supervisor itself was stopped."""


class Supervisor:
    """Runs a program and returns when all its processes have ended."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._layout = ProcessLayout(program, session)
        self._checkpointer = Checkpointer(session, self._layout, self._send_command, self._up, self._now)
        self._needed: set[str] = set()
        """Processes that the running final evaluation depends on."""
        self._restarts: dict[str, int] = dict.fromkeys(program.processes, 0)
        self._files = ThreadPoolExecutor(1, "files")
        """Writes small files with fsync, in order, and never waits for a checkpoint."""
        self._background: set[asyncio.Task[None]] = set()
        self._final_evaluation: asyncio.Task[None] | None = None
        self._created = self._ticked = time.monotonic()
        self._first_step: float | None = None
        self._interrupts = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what a runtime provides ------------------------------------------------------------------

    @property
    def _processes(self) -> Mapping[str, ManagedProcess]:
        """The running processes, by name."""
        raise NotImplementedError

    def _start(self, name: str, plan: StartCommand) -> None:
        """Start a process and connect it to its neighbours. Raises OSError if it cannot be started."""
        raise NotImplementedError

    async def _send_command(self, name: str, kind: str, *args: Any) -> Any:
        """Send a command and return its result. Raises RuntimeError if it fails."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Check for processes that hang; called ten times a second."""

    def _count_unreported_steps(self) -> None:
        """Count steps that no process reported. Called when no more steps are taken, before the last checkpoint."""

    def _locations(self) -> dict[str, Any]:
        """Return the locations of the processes, for topology.json."""
        raise NotImplementedError

    async def _dump_stacks(self) -> None:
        """Write the stacks of every process to the log."""
        raise NotImplementedError

    def _kill(self) -> None:
        """Kill all processes and release all resources."""
        raise NotImplementedError

    # -- the run ----------------------------------------------------------------------------------

    def run(self, restore: Path | None) -> dict[str, Any]:
        """Run the program, from a checkpoint if given; return the summary."""
        return asyncio.run(self._run(restore))

    def _now(self) -> float:
        return self._session.clock + time.monotonic() - self._created

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
            startup = None if self._first_step is None else self._first_step - self._created
            return await asyncio.to_thread(session.finish, self._now(), startup)

    async def _start_all(self, restore: Path | None) -> None:
        try:
            plans = {}
            for name in self._program.processes:
                plans[name] = await self._plan(name, restore)
            for name, plan in plans.items():
                self._start(name, plan)
                if restore is not None:
                    self._session.checkpoints.reserve(name, restore)
        except OSError as error:
            self._session.end("error", f"{name} cannot be started: {explain(error, self._program)}", blame_user=True)
        await self._write_topology()

    async def _plan(self, name: str, restore: Path | None) -> StartCommand:
        """Build the start command of a process. Its epochs are written to disk first."""
        restarts = self._restarts[name]
        return await asyncio.get_running_loop().run_in_executor(
            self._files, self._layout.start, name, restarts, restore
        )

    async def _write_topology(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._files, self._session.topology, self._locations())
        except OSError as error:
            self._session.topology_failed(error)

    async def _tick(self) -> None:
        session, now = self._session, self._now()
        gap, self._ticked = time.monotonic() - self._ticked, time.monotonic()
        if gap > _STOPPED_SECONDS:
            session.came_up(now)  # no reports arrived meanwhile, so this is not a stall
        session.tick(now)
        self._watch()
        self._checkpointer.save_if_due(now)
        up = self._up()
        stalled = session.stalled(now, [name for name in self._program.processes if name not in up])
        if stalled is not None and session.stop_reason is None:
            await self._dump_stacks()
            session.end("stalled", f"{stalled}. The stacks of all processes are in {session.run.log}")

    def _interrupt(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._exit_now()
        self._session.end("interrupted")
        if self._final_evaluation is not None:
            self._final_evaluation.cancel()

    def interrupt(self) -> None:
        """End the run as Ctrl-C does, from another thread."""
        self._interrupts = 1
        self._session.end("interrupted")
        self._call(lambda: self._final_evaluation and self._final_evaluation.cancel())

    def abandon(self) -> None:
        """Kill all processes, from another thread. Pending commands then fail at once."""
        self._call(self._kill_processes)

    def _kill_processes(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _call(self, function: Callable[[], Any]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(function)

    def _exit_now(self) -> NoReturn:
        self._session.screen.close()
        self._kill_processes()
        os._exit(130)

    # -- processes --------------------------------------------------------------------------------

    def _on_message(self, process: ManagedProcess, message: Any) -> None:
        """Handle a message of a process: reports or an error."""
        kind, *rest = message
        if kind == "reports":
            if not process.up:
                process.up = True
                self._session.checkpoints.release(process.name)
                self._session.came_up(self._now())
            for report in rest[0]:
                self._on_report(report)
        elif kind == "error":
            process.failure = tuple(rest)

    def _on_report(self, report: Report) -> None:
        if self._first_step is None and report.counters.get("env_steps"):
            self._first_step = time.monotonic()
        self._session.receive(report, self._now())

    def _on_ended(self, process: ManagedProcess) -> None:
        """Restart an ended process if its roles allow; else end the run with the error."""
        if self._is_ending:
            if self._final_evaluation is not None and process.name in self._needed:
                self._session.log(f"no final evaluation: {process.name} {process.ending} meanwhile")
                self._final_evaluation.cancel()
            if process.failure is not None and self._session.stop_reason != "error":  # already reported
                what, trace, _ = process.failure
                self._session.log(f"{what}, at the end of the run")
                if trace:
                    self._session.log(trace, show=False)
            return
        specs = self._program.processes[process.name]
        roles = ", ".join(map(str, specs))
        who = roles if len(specs) == 1 else f"{process.name} ({roles})"
        what, trace, blame_user = process.failure or (f"{who} {process.ending}", "", False)
        done = self._restarts[process.name]
        if blame_user or done >= restart_limit(specs):
            after = f" (after {done} restarts)" if done else ""
            self._session.end("error", what + after + (f"\n\n{trace.rstrip()}" if trace else ""), blame_user=blame_user)
            return
        if trace:
            self._session.log(trace, show=False)
        self._restarts[process.name] += 1
        for spec in specs:
            self._session.restarted(spec)
        delay = _BACK_OFF[min(done, len(_BACK_OFF) - 1)]
        self._session.log(f"{what}; restarting in {delay:g} s ({done + 1} of {restart_limit(specs)})")
        self._in_background(self._restart(process.name, delay))

    async def _restart(self, name: str, delay: float) -> None:
        """Restart a process after `delay`; retry while the system lacks resources."""
        await asyncio.sleep(delay)
        try:
            await self._restart_from_checkpoint(name)
        except OSError as error:  # a full disk or no free descriptor, which may be temporary
            delay = _BACK_OFF[-1]
            self._session.log(f"{name} cannot be started again ({error}); trying again in {delay:g} s")
            self._in_background(self._restart(name, delay))
        except ThespisError as error:
            self._session.end("error", f"{name} cannot be started again: {error}", blame_user=True)

    async def _restart_from_checkpoint(self, name: str) -> None:
        """Start a process from the newest checkpoint, unless the run ends first."""
        session, specs, restore = self._session, self._program.processes[name], None
        if self._is_ending:
            return
        if any(hasattr(spec.kind, "restore") for spec in specs):
            found = await self._checkpointer.reserve_newest(name)
            if self._is_ending:
                return
            for skipped in found.skipped:
                session.log(f"skipped {skipped}")
            restore = found.path
            session.log(f"{name} resumes from {restore.name}" if restore else f"{name} has no checkpoint yet")
        plan = await self._plan(name, restore)
        if self._is_ending:
            return
        for spec in specs:
            session.reverted(spec, restore)
        self._start(name, plan)
        await self._write_topology()

    @property
    def _is_ending(self) -> bool:
        """Whether the run is ending; no process is started then."""
        return self._stopping or self._session.stop_reason is not None

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- commands and the end ---------------------------------------------------------------------

    async def _send_all(self, names: list[str], kind: str, *args: Any, seconds: float) -> None:
        """Send a command to several processes and wait until all have replied or exited, or the time is up."""
        tasks = [asyncio.create_task(self._send_command(name, kind, *args)) for name in names]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _up(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.up]

    async def _end(self) -> None:
        """Wind down, and continue stopped processes meanwhile so that they cannot block the end."""
        ending = asyncio.create_task(self._wind_down())
        while not ending.done():
            self._watch()
            await asyncio.wait({ending}, timeout=_TICK_SECONDS)
        ending.result()

    async def _wind_down(self) -> None:
        """Stop the workers, save a checkpoint, evaluate, and close all processes."""
        session = self._session
        crashed = session.stop_reason in ("error", "stalled")
        self._kill_starting()
        absent = [name for name in self._program.processes if name not in self._up()]
        await self._send_all(self._up(), "halt", seconds=_HALT_SECONDS)
        hasty = crashed or session.stop_reason == "interrupted"
        await self._checkpointer.settle(hasty=hasty)
        if absent and not hasty:
            await self._wait_until_up()
            await self._send_all(self._up(), "halt", seconds=_HALT_SECONDS)
        self._count_unreported_steps()
        seconds = _HASTY_SAVE_SECONDS if hasty else SAVE_SECONDS
        if session.monitor.env_steps and not await self._checkpointer.save(seconds):
            session.end_unsaved()
        if not hasty:
            self._final_evaluation = asyncio.create_task(self._evaluate(absent))
            await asyncio.gather(self._final_evaluation, return_exceptions=True)
            self._final_evaluation = None  # a process that ends from here on cancels no evaluation
        await self._send_all(self._up(), "exit", seconds=_EXIT_SECONDS)

    def _kill_starting(self) -> None:
        """Kill processes that are still starting, except evaluators and processes with state."""
        evaluators = {spec.process for spec in self._program.roles if description_of(spec.kind).evaluates}
        for name, process in self._processes.items():
            if not process.up and name not in evaluators and name not in self._layout.stateful:
                process.kill()

    async def _wait_until_up(self) -> None:
        """Wait for starting processes whose state a checkpoint needs: a short run can end before they are up."""
        deadline = self._now() + _LATE_SECONDS
        while any(name in self._processes for name in self._checkpointer.absent()):
            if self._now() > deadline or self._interrupts:
                return
            await asyncio.sleep(0.05)

    async def _evaluate(self, absent: list[str]) -> None:
        """Run the final evaluation of each evaluator whose weights are available.

        `absent`: processes that were not up when the run ended; a process started later holds no weights. A restarted
        service has none either if the owner of the weights is gone, and an evaluator would wait forever.
        """
        for spec in self._program.roles:
            if not description_of(spec.kind).evaluates:
                continue
            needed = self._layout.neighbours(spec.process)
            if any(self._restarts[name] for name in needed):
                behind = {other for name in needed for other in self._layout.neighbours(name)}
                needed = [*needed, *self._layout.weight_holders.intersection(behind).difference(needed)]
            gone = [name for name in needed if name in absent or name not in self._processes]
            if spec.process not in self._up():
                gone.append(spec.process)
            if gone:
                self._session.log(f"no final evaluation: {', '.join(gone)} was not running at the end")
                continue
            self._needed = {*needed}
            try:
                await asyncio.wait_for(self._send_command(spec.process, "do", spec.key, "evaluate"), _EVALUATE_SECONDS)
            except (TimeoutError, RuntimeError) as error:
                self._session.log(f"final evaluation failed: {error}")
