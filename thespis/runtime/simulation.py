"""The simulation: all roles on one event loop with virtual time, in one process. A seed determines every bit.

Environments and gradients are real; only time is virtual. At a checkpoint all roles are rebuilt from the saved state,
both in a run that continues and in a resumed one. Therefore the two cannot differ.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.program import Program, RoleSpec, restart_limit
from thespis.core.service import description_of
from thespis.core.step_count import StepCount
from thespis.runs.checkpoints import save_role
from thespis.runs.stall_detector import who_waits
from thespis.runtime.cost_model import CostModel
from thespis.runtime.endpoint import build, save_collected, snapshot
from thespis.runtime.env_watchdog import EnvHang, EnvWatchdog
from thespis.runtime.faults import Fault
from thespis.runtime.session import Session
from thespis.runtime.signals import stop_on_signal
from thespis.runtime.simulated_calls import Key, SimulatedCalls
from thespis.runtime.simulated_network import SimulatedNetwork
from thespis.runtime.virtual_time import Cores, Deadlock, RoleIncarnation, SimulatedContext, VirtualLoop

_FLUSH_SECONDS = 0.05
_CLOSE_FLUSH_SECONDS = 0.002
"""Flush interval of a partial run. It overshoots its step limit by the steps of one interval."""
_FLUSHES_PER_SAVE = 10
"""Flushes between two checkpoints of `--save-every`. A checkpoint is late by the steps of one flush."""
_RESTART_SECONDS = 0.5


class Simulation:
    """Runs a program on virtual time."""

    def __init__(self, program: Program, session: Session, costs: CostModel, faults: list[Fault]) -> None:
        self._program, self._session, self._costs, self._faults = program, session, costs, faults
        self._incarnations: dict[Key, RoleIncarnation] = {}
        self._restarts: dict[str, int] = {}
        self._rng = np.random.default_rng()
        self._flush_every = _CLOSE_FLUSH_SECONDS if session.partial else _FLUSH_SECONDS
        self._next_flush = 0.0
        every = session.cfg.save_every
        self._flush_steps = math.inf if every is None else max(1, every // _FLUSHES_PER_SAVE)
        self._save_now = False
        self._running = False
        self._evaluation: asyncio.Task[None] | None = None
        self._watchdog = EnvWatchdog(session.cfg.env_timeout, self._give_up)
        self._created = time.monotonic()
        self._first_step: float | None = None

    def run(self, restore: Path | None) -> dict[str, Any]:
        """Run the program, from a checkpoint if given; return the summary."""
        self._use_one_thread()
        with stop_on_signal(self.interrupt), self._watchdog:
            now = self._session.clock
            while self._session.stop_reason is None:
                now, restore = self._segment(now, restore)
        startup = None if self._first_step is None else self._first_step - self._created
        return self._session.finish(now, startup)

    def _use_one_thread(self) -> None:
        """Use one torch thread: the split of a sum over threads changes its last bits. A built learner may raise it."""
        import torch

        torch.set_num_threads(1)

    # -- one segment: from one cut to the next ----------------------------------------------------

    def _segment(self, start: float, restore: Path | None) -> tuple[float, Path | None]:
        loop = VirtualLoop(start, self._on_time, self._before_leap)
        self._loop, self._save_now, self._next_flush = loop, False, start + self._flush_every
        self._rng = np.random.default_rng([self._session.cfg.seed, self._session.generation])
        self._restarts = dict.fromkeys(self._program.processes, 0)
        self._cores = Cores(self._costs.cores)
        left = self._session.steps_left
        self._steps = StepCount.single_process(left)
        self._session.steps = None if left is None else self._steps
        self._flushed_steps = 0
        faults = [fault for fault in self._faults if fault.at >= start]
        network = SimulatedNetwork(loop, self._costs, self._cores, self._rng, faults)
        lossy = any(fault.kind == "lose" for fault in self._faults)
        self._calls = SimulatedCalls(self._program, loop, network, self._incarnations, self._fail_with, lossy)
        try:
            try:
                self._session.topology({})
            except OSError as error:
                self._session.topology_failed(error)
            for process in self._program.processes:
                # Only in a new run: after a checkpoint, a continued and a resumed run must take the same time.
                delay = self._costs.start_seconds(self._rng) if restore is None else 0.0
                if delay:
                    loop.call_later(delay, self._build, process, None)
                elif self._session.stop_reason is None:
                    self._build(process, restore)
            for fault in faults:
                if fault.kind == "kill":
                    loop.call_at(fault.at, self._kill, fault)
            saved: Path | None = None
            while self._session.stop_reason is None and saved is None:
                self._run_loop(loop)
                if self._save_now:
                    self._save_now = False
                    saved = self._save()
            if saved is None:
                self._wind_down(loop)
            else:
                self._session.load(saved)
                self._halt(loop)
        finally:
            self._close(loop)
        return loop.time(), saved

    def _run_loop(self, loop: VirtualLoop) -> None:
        """Run the event loop until a stop, a checkpoint, an error or a deadlock."""
        self._running = True
        try:
            loop.run_forever()
        except Deadlock:
            self._flush()
            if self._session.spent:
                self._session.end("total_steps")  # the roles wait for steps beyond the limit
            self._session.end("deadlock", f"nothing can run; {who_waits(self._session.monitor)}")
        finally:
            self._running = False

    def _on_time(self, now: float) -> None:
        if now >= self._next_flush or self._steps.of(0) - self._flushed_steps >= self._flush_steps:
            self._next_flush = now + self._flush_every
            self._flush()
            self._session.tick(now)
            stalled = self._session.stalled(now)
            if stalled is not None:
                self._session.end("stalled", stalled)
            # The end of the run saves its own checkpoint.
            ending = self._session.stop_reason is not None or self._session.spent
            if not ending and not self._absent() and self._session.save_due(now):
                self._save_now = True
        if self._running and (self._save_now or self._session.stop_reason is not None):
            self._loop.stop()

    def _before_leap(self) -> bool:
        """Return whether to stop before a long sleep, because the run has reached its end."""
        if not self._running:
            return False
        self._flush()
        if self._session.stop_reason is not None:
            self._loop.stop()
        return self._session.stop_reason is not None

    def _flush(self) -> None:
        self._flushed_steps = self._steps.of(0)
        self._session.stepping = {key: incarnation.ctx.stepping for key, incarnation in self._incarnations.items()}
        for incarnation in self._incarnations.values():
            report = incarnation.ctx.take_report()
            if self._first_step is None and report.counters.get("env_steps"):
                self._first_step = time.monotonic()
            self._session.receive(report, self._loop.time())

    def interrupt(self) -> None:
        """End the run with a checkpoint, from a signal handler or from another thread."""
        self._session.end("interrupted")
        self._watchdog.hurry()
        for incarnation in list(self._incarnations.values()):
            incarnation.ctx.interrupt()
        if self._evaluation is not None:
            self._evaluation.cancel()

    def abandon(self) -> None:
        """Do nothing: all roles run in the driver's thread, which cannot be killed."""

    def _give_up(self, what: str) -> None:
        """Write the summary of a run whose thread hangs."""
        self._session.end("error", what)
        self._flush()
        self._session.finish(self._loop.time(), None)
        self._session.screen.close()

    # -- roles ------------------------------------------------------------------------------------

    def _build(self, process: str, restore: Path | None) -> None:
        for spec in self._program.processes[process]:
            slow = next((f.by for f in self._faults if f.kind == "slow" and (f.role, f.index) == spec.key), 1.0)
            identity = Identity(
                role=spec.role,
                index=spec.index,
                run_seed=self._session.cfg.seed,
                generation=self._session.generation,
                restarts=self._restarts[process],
                epoch=self._session.epoch(spec),
                incarnation=(self._session.generation << 16) + self._restarts[process],
            )
            ctx = SimulatedContext(
                identity, self._loop, self._costs, self._cores, self._rng, process, spec.thread, slow, self._watchdog
            )
            ctx.steps = self._steps
            self._watchdog.who = f"{spec}: "
            try:
                role, endpoint = build(spec, ctx, self._calls.deliver, restore)
            except (Exception, EnvHang) as error:
                self._fail_to_build(spec, error)
                return
            incarnation = self._incarnations[spec.key] = RoleIncarnation(spec, ctx, role, endpoint)
            self._calls.started(spec.key)
            self._use_one_thread()
            if hasattr(role, "run"):
                incarnation.task = self._loop.create_task(self._work(incarnation))

    def _fail_to_build(self, spec: RoleSpec, error: Exception | EnvHang) -> None:
        if isinstance(error, ThespisError | EnvHang):
            self._session.end("error", str(error), blame_user=isinstance(error, ThespisError))
        else:
            self._session.end("error", f"{spec}: {type(error).__name__}: {error}\n\n{traceback.format_exc().rstrip()}")

    async def _work(self, incarnation: RoleIncarnation) -> None:
        try:
            await incarnation.role.run()
        except (Exception, EnvHang) as error:
            self._fail_with(incarnation.spec, error)

    def _fail_with(self, spec: RoleSpec, error: Exception | EnvHang) -> None:
        if isinstance(error, ThespisError | EnvHang):  # a restart would fail in the same way
            self._session.end("error", str(error), blame_user=isinstance(error, ThespisError))
            self._loop.stop()
            return
        self._fail(spec, f"{spec}: {type(error).__name__}: {error}", traceback.format_exc())

    def _kill(self, fault: Fault) -> None:
        spec = self._program.find(fault.role, fault.index)
        if spec is not None and spec.key in self._incarnations:
            self._fail(spec, f"{spec} was killed", "")

    def _fail(self, spec: RoleSpec, what: str, trace: str) -> None:
        """Handle the loss of a role and of its process: restart the process or end the run."""
        if spec.key not in self._incarnations:
            return  # lost with another role of its process
        specs, process = self._program.processes[spec.process], spec.process
        for other in specs:
            self._remove(other.key)
        if self._restarts[process] >= restart_limit(specs):
            self._session.end("error", what + (f"\n\n{trace.rstrip()}" if trace else ""))
            self._loop.stop()
            return
        self._restarts[process] += 1
        for other in specs:
            self._session.restarted(other)
        delay = _RESTART_SECONDS + self._costs.start_seconds(self._rng)
        self._session.log(f"{what}; restarting in {delay:g} s")
        self._loop.call_later(delay, self._restart, process)

    def _restart(self, process: str) -> None:
        restore = self._session.find_checkpoint().path
        for spec in self._program.processes[process]:
            self._session.reverted(spec, restore)
        self._build(process, restore)
        self._calls.repeat(process)

    def _remove(self, key: Key) -> None:
        incarnation = self._incarnations.pop(key)
        self._session.receive(incarnation.ctx.take_report(), self._loop.time())
        self._calls.stopped(key)
        lost = (*key, incarnation.ctx.identity.incarnation)
        for other in self._incarnations.values():
            other.endpoint.lost(lost)
            for attempt, caller in other.attempts.items():
                if caller == lost:
                    attempt.cancel()
        for attempt in incarnation.attempts:
            attempt.cancel()
        incarnation.endpoint.close()
        if incarnation.task is not None and incarnation.task is not asyncio.current_task(self._loop):
            incarnation.task.cancel()

    # -- saving and ending ------------------------------------------------------------------------

    def _absent(self) -> list[str]:
        """Return the processes with state that are down."""
        down = [spec for spec in self._program.roles if spec.key not in self._incarnations]
        return list(dict.fromkeys(spec.process for spec in down if hasattr(spec.kind, "state")))

    def _save(self) -> Path | None:
        # The current metrics interval is not saved, so it ends here in every run.
        self._flush()
        self._session.row(self._loop.time())

        def write(staging: Path) -> None:
            for (name, index), incarnation in self._incarnations.items():
                if hasattr(incarnation.role, "state"):
                    save_role(staging, name, index, *snapshot(incarnation.role, incarnation.endpoint))

        roles = [incarnation.role for incarnation in self._incarnations.values()]
        save = partial(self._session.save, write, self._loop.time(), self._absent())
        return save_collected(self._loop, roles, save, self._session.save_failed)

    def _halt(self, loop: VirtualLoop) -> None:
        """Cancel the workers; the services stay up."""
        tasks = [incarnation.task for incarnation in self._incarnations.values() if incarnation.task is not None]
        for task in tasks:
            task.cancel()
        loop.finish(tasks)

    def _wind_down(self, loop: VirtualLoop) -> None:
        self._halt(loop)
        session = self._session
        self._flush()  # steps that no report has counted yet are steps to save
        if session.monitor.env_steps and self._save() is None:
            session.end_unsaved()
        if session.stop_reason in ("total_steps", "total_seconds", "return_reached", "callback"):
            for incarnation in list(self._incarnations.values()):
                if description_of(type(incarnation.role)).evaluates:
                    self._evaluate(loop, incarnation)
        self._flush()

    def _evaluate(self, loop: VirtualLoop, incarnation: RoleIncarnation) -> None:
        self._evaluation = loop.create_task(incarnation.role.evaluate())
        try:
            loop.run_until_complete(self._evaluation)
        except (Exception, asyncio.CancelledError, EnvHang) as error:
            self._session.log(f"final evaluation failed: {type(error).__name__}: {error}")

    def _close(self, loop: VirtualLoop) -> None:
        if self._session.stop_reason is not None:
            self._watchdog.hurry()
        for incarnation in self._incarnations.values():
            if hasattr(incarnation.role, "close"):
                self._watchdog.who = f"{incarnation.spec}: "
                closing = loop.create_task(incarnation.role.close())
                loop.finish([closing])
                if not closing.cancelled() and isinstance(hang := closing.exception(), EnvHang):
                    self._session.log(str(hang))
        self._incarnations.clear()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.finish(tasks)
        loop.close()
