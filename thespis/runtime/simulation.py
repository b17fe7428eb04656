"""The simulation: every role on one event loop with virtual time, in one process. One seed, one result, to the bit.

Environments and gradients are real; only time is made up. A checkpoint is a cut: all roles are rebuilt from what was
saved, in the run that goes on just as in one that is resumed later, which is why the two cannot differ.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.program import Program, RoleSpec, shared
from thespis.core.service import describe
from thespis.core.step_count import StepCount
from thespis.runs.checkpoints import save_role
from thespis.runs.stalls import who_waits
from thespis.runtime.costs import CostModel, message_bytes
from thespis.runtime.endpoint import build, snapshot
from thespis.runtime.faults import Fault
from thespis.runtime.session import Session
from thespis.runtime.signals import stop_on_signal
from thespis.runtime.virtual import Cores, Deadlock, Life, SimulatedContext, VirtualLoop
from thespis.transport.calls import Call

_FLUSH_SECONDS = 0.05
_CLOSE_FLUSH_SECONDS = 0.002
"""For a part of a run: what it takes beyond its end is steps that it was not given."""
_RESTART_SECONDS = 0.5
_RETRY_SECONDS = 1.0
"""How long a caller waits for a reply that was lost before it asks again."""

Key = tuple[str, int]


class Simulation:
    """Performs a program on virtual time."""

    def __init__(self, program: Program, session: Session, costs: CostModel, faults: list[Fault]) -> None:
        self._program, self._session, self._costs, self._faults = program, session, costs, faults
        self._homes = {spec.key: spec.process for spec in program.roles}
        self._retained = program.retained
        self._lives: dict[Key, Life] = {}
        self._back: dict[Key, asyncio.Event] = {}
        self._restarts: dict[str, int] = {}
        self._arrivals: dict[tuple[Key, str], float] = {}
        self._last_calls: dict[tuple[Key, Key, str], tuple[Call, str]] = {}
        self._strikes: list[Fault] = []
        self._rng = np.random.default_rng()
        self._flush_every = _CLOSE_FLUSH_SECONDS if session.partial else _FLUSH_SECONDS
        self._next_flush = 0.0
        self._cut = False
        self._turning = False
        self._judging: asyncio.Task[None] | None = None
        self._born = time.monotonic()
        self._first_step: float | None = None

    def run(self, restore: Path | None) -> dict[str, Any]:
        self._use_one_thread()
        with stop_on_signal(self.interrupt):
            now = self._session.clock
            while self._session.stop_reason is None:
                now, restore = self._segment(now, restore)
        startup = None if self._first_step is None else self._first_step - self._born
        return self._session.finish(now, startup)

    def _use_one_thread(self) -> None:
        """How a sum is split over threads changes its last bits. A learner that is built may have asked for more."""
        import torch

        torch.set_num_threads(1)

    # -- one segment: from one cut to the next ----------------------------------------------------

    def _segment(self, start: float, restore: Path | None) -> tuple[float, Path | None]:
        loop = VirtualLoop(start, self._on_time, self._before_leap)
        self._loop, self._cut, self._next_flush = loop, False, start + self._flush_every
        self._rng = np.random.default_rng([self._session.cfg.seed, self._session.generation])
        self._restarts = dict.fromkeys(self._program.processes, 0)
        self._cores = Cores(self._costs.cores)
        left = self._session.steps_left
        self._session.steps = None if left is None else StepCount.alone(left)
        self._arrivals.clear()
        self._last_calls.clear()
        self._back = {spec.key: asyncio.Event() for spec in self._program.roles}
        self._strikes = [fault for fault in self._faults if fault.kind in ("lose", "delay") and fault.at >= start]
        try:
            try:
                self._session.topology({})
            except OSError as error:
                self._session.topology_failed(error)
            for home in self._program.processes:
                # Only the first time: neither a cut nor a resumed run may cost time that the other does not.
                delay = self._costs.start_seconds(self._rng) if restore is None else 0.0
                if delay:
                    loop.call_later(delay, self._build, home, None)
                elif self._session.stop_reason is None:
                    self._build(home, restore)
            for fault in self._faults:
                if fault.kind == "kill" and fault.at >= start:
                    loop.call_at(fault.at, self._kill, fault)
            saved: Path | None = None
            while self._session.stop_reason is None and saved is None:
                self._turn(loop)
                if self._cut:
                    self._cut = False
                    saved = self._save()
            if saved is None:
                self._wind_down(loop)
            else:
                self._session.load(saved)
                self._halt(loop)
        finally:
            self._close(loop)
        return loop.time(), saved

    def _turn(self, loop: VirtualLoop) -> None:
        """Run until something calls for the driver: a stop, a cut, an error, a deadlock."""
        self._turning = True
        try:
            loop.run_forever()
        except Deadlock:
            self._flush()
            if self._session.spent:
                self._session.end("total_steps")  # what they wait for would take more steps
            self._session.end("deadlock", f"nothing can run; {who_waits(self._session.monitor)}")
        finally:
            self._turning = False

    def _on_time(self, now: float) -> None:
        if now >= self._next_flush:
            self._next_flush = now + self._flush_every
            self._flush()
            self._session.tick(now)
            stalled = self._session.stalled(now)
            if stalled is not None:
                self._session.end("stalled", stalled)
            # With a checkpoint of its own, after the last of all.
            ending = self._session.stop_reason is not None or self._session.spent
            if not ending and not self._absent() and self._session.save_due(now):
                self._cut = True
        if self._turning and (self._cut or self._session.stop_reason is not None):
            self._loop.stop()

    def _before_leap(self) -> bool:
        """Whether to stay: what has been done by now may be all there was to do."""
        if not self._turning:
            return False
        self._flush()
        if self._session.stop_reason is not None:
            self._loop.stop()
        return self._session.stop_reason is not None

    def _flush(self) -> None:
        self._session.stepping = {key: life.ctx.stepping for key, life in self._lives.items()}
        for life in self._lives.values():
            report = life.ctx.take_report()
            if self._first_step is None and report.counters.get("env_steps"):
                self._first_step = time.monotonic()
            self._session.receive(report, self._loop.time())

    def interrupt(self) -> None:
        """End in order, from a signal handler or from another thread."""
        self._session.end("interrupted")
        for life in list(self._lives.values()):
            life.ctx.interrupt()
        if self._judging is not None:
            self._judging.cancel()

    def abandon(self) -> None:
        """All roles live in the run's own thread, which nobody can kill; an interrupt is all there is."""

    # -- roles ------------------------------------------------------------------------------------

    def _build(self, home: str, restore: Path | None) -> None:
        for spec in self._program.processes[home]:
            slow = next((f.by for f in self._faults if f.kind == "slow" and (f.role, f.index) == spec.key), 1.0)
            identity = Identity(
                role=spec.role,
                index=spec.index,
                run_seed=self._session.cfg.seed,
                generation=self._session.generation,
                restarts=self._restarts[home],
                epoch=self._session.epoch(spec),
                incarnation=(self._session.generation << 16) + self._restarts[home],
            )
            ctx = SimulatedContext(identity, self._loop, self._costs, self._cores, self._rng, home, spec.thread, slow)
            ctx.steps = self._session.steps
            try:
                role, endpoint = build(spec, ctx, self._deliver, restore)
            except Exception as error:
                self._fail_to_build(spec, error)
                return
            life = self._lives[spec.key] = Life(spec, ctx, role, endpoint)
            self._back[spec.key].set()
            self._use_one_thread()
            if hasattr(role, "run"):
                life.task = self._loop.create_task(self._work(life))

    def _fail_to_build(self, spec: RoleSpec, error: Exception) -> None:
        if isinstance(error, ThespisError):
            self._session.end("error", str(error), blame_user=True)
        else:
            self._session.end("error", f"{spec}: {type(error).__name__}: {error}\n\n{traceback.format_exc().rstrip()}")

    async def _work(self, life: Life) -> None:
        try:
            await life.role.run()
        except Exception as error:
            self._fail_with(life.spec, error)

    def _fail_with(self, spec: RoleSpec, error: Exception) -> None:
        if isinstance(error, ThespisError):  # another life would end in the same way
            self._session.end("error", str(error), blame_user=True)
            self._loop.stop()
            return
        self._fail(spec, f"{spec}: {type(error).__name__}: {error}", traceback.format_exc())

    def _kill(self, fault: Fault) -> None:
        spec = self._program.find(fault.role, fault.index)
        if spec is not None and spec.key in self._lives:
            self._fail(spec, f"{spec} was killed", "")

    def _fail(self, spec: RoleSpec, what: str, trace: str) -> None:
        """A role is gone, and all that shared its process with it; bring them back or end the run."""
        if spec.key not in self._lives:
            return  # it went down with another role of its process
        specs, home = self._program.processes[spec.process], spec.process
        for other in specs:
            self._bury(other.key)
        if self._restarts[home] >= shared(specs):
            self._session.end("error", what + (f"\n\n{trace.rstrip()}" if trace else ""))
            self._loop.stop()
            return
        self._restarts[home] += 1
        for other in specs:
            self._session.restarted(other)
        delay = _RESTART_SECONDS + self._costs.start_seconds(self._rng)
        self._session.log(f"{what}; restarting in {delay:g} s")
        self._loop.call_later(delay, self._revive, home)

    def _revive(self, home: str) -> None:
        restore = self._session.find_checkpoint().path
        for spec in self._program.processes[home]:
            self._session.reverted(spec, restore)
        self._build(home, restore)
        for call, edge in list(self._last_calls.values()):
            if self._homes[call.service] == home:
                self._deliver(call, edge, lambda _: None)

    def _bury(self, key: Key) -> None:
        life = self._lives.pop(key)
        self._session.receive(life.ctx.take_report(), self._loop.time())
        self._back[key].clear()
        me = (*key, life.ctx.identity.incarnation)
        for other in self._lives.values():
            other.endpoint.lost(me)
            for attempt, caller in other.attempts.items():
                if caller == me:
                    attempt.cancel()
        for attempt in life.attempts:
            attempt.cancel()
        life.endpoint.close()
        if life.task is not None and life.task is not asyncio.current_task(self._loop):
            life.task.cancel()

    # -- edges ------------------------------------------------------------------------------------

    def _deliver(self, call: Call, edge: str, answered: Callable[[int], None]) -> asyncio.Future[Any]:
        return self._loop.create_task(self._insist(call, edge, answered))

    async def _insist(self, call: Call, edge: str, answered: Callable[[int], None]) -> Any:
        """Deliver until answered: again when the service died, or when the reply was lost."""
        patience = _RETRY_SECONDS if any(fault.kind == "lose" for fault in self._faults) else None
        while True:
            await self._back[call.service].wait()
            me = self._lives.get(call.caller[:2])
            if me is None or me.ctx.identity.incarnation != call.caller[2]:
                # A call that a role made ahead outlives it; nobody waits for the answer.
                raise asyncio.CancelledError
            attempts = self._lives[call.service].attempts
            attempt = self._loop.create_task(self._attempt(call, edge))
            attempts[attempt] = call.caller
            try:
                await asyncio.wait({attempt}, timeout=patience)
            finally:
                attempts.pop(attempt, None)
                if not attempt.done():
                    attempt.cancel()
            if attempt.done() and not attempt.cancelled():
                answer, nbytes = attempt.result()
                answered(nbytes)
                if (call.service, call.method) in self._retained:
                    self._last_calls[call.caller[:2], call.service, edge] = (call, edge)
                return answer

    async def _attempt(self, call: Call, edge: str) -> tuple[Any, int]:
        there = message_bytes(call.args)
        near, far = self._homes[call.caller[:2]], self._homes[call.service]
        cpu = self._costs.end_seconds(edge)  # within a process too, which must have a core to turn to anything
        await self._handle(near, cpu)
        await self._travel((call.caller[:2], edge), edge, there)
        await self._handle(far, cpu)
        answer = await self._serve(call)
        await self._strike(edge)
        back = message_bytes(answer)
        await self._handle(far, cpu)
        await asyncio.sleep(self._costs.edge_seconds(edge, back, self._rng))
        await self._handle(near, cpu)
        return answer, (there + back) * (near != far)

    async def _serve(self, call: Call) -> Any:
        """The service's answer; its error is its own, not its caller's."""
        life = self._lives[call.service]
        try:
            return await life.endpoint.answer(call)
        except Exception as error:
            self._fail_with(life.spec, error)
            raise asyncio.CancelledError from None

    async def _handle(self, process: str, seconds: float) -> None:
        """What a message takes of a process at one of its ends."""
        if seconds:
            await self._cores.work(process, seconds)

    async def _travel(self, lane: tuple[Key, str], edge: str, nbytes: int) -> None:
        # Messages of one caller on one edge do not overtake each other, as on a socket.
        now = self._loop.time()
        arrival = max(now + self._costs.edge_seconds(edge, nbytes, self._rng), self._arrivals.get(lane, 0.0))
        self._arrivals[lane] = arrival
        await asyncio.sleep(arrival - now)

    async def _strike(self, edge: str) -> None:
        for fault in self._strikes:
            if fault.edge == edge and self._loop.time() >= fault.at:
                self._strikes.remove(fault)
                if fault.kind == "delay":
                    await asyncio.sleep(fault.by)
                else:
                    await self._loop.create_future()
                return

    # -- saving and ending ------------------------------------------------------------------------

    def _absent(self) -> list[str]:
        """Processes with a state that are down now."""
        down = [spec for spec in self._program.roles if hasattr(spec.kind, "state") and spec.key not in self._lives]
        return list(dict.fromkeys(spec.process for spec in down))

    def _save(self) -> Path | None:
        # The open interval of the metrics is not saved, so it ends here, in every run alike.
        self._flush()
        self._session.row(self._loop.time())

        def write(staging: Path) -> None:
            for (name, index), life in self._lives.items():
                if hasattr(life.role, "state"):
                    save_role(staging, name, index, *snapshot(life.role, life.endpoint))

        return self._session.save(write, self._loop.time(), self._absent())

    def _halt(self, loop: VirtualLoop) -> None:
        """Stop the workers where they wait; the services stay up."""
        tasks = [life.task for life in self._lives.values() if life.task is not None]
        for task in tasks:
            task.cancel()
        loop.finish(tasks)

    def _wind_down(self, loop: VirtualLoop) -> None:
        self._halt(loop)
        session = self._session
        if session.monitor.env_steps and self._save() is None:
            session.end_unsaved()
        if session.stop_reason in ("total_steps", "total_seconds", "return_reached", "callback"):
            for life in list(self._lives.values()):
                if describe(type(life.role)).evaluates:
                    self._judge(loop, life)
        self._flush()

    def _judge(self, loop: VirtualLoop, life: Life) -> None:
        self._judging = loop.create_task(life.role.evaluate())
        try:
            loop.run_until_complete(self._judging)
        except (Exception, asyncio.CancelledError) as error:
            self._session.log(f"final evaluation failed: {type(error).__name__}: {error}")

    def _close(self, loop: VirtualLoop) -> None:
        for life in self._lives.values():
            if hasattr(life.role, "close"):
                loop.finish([loop.create_task(life.role.close())])
        self._lives.clear()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.finish(tasks)
        loop.close()
