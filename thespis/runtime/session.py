"""The driver's part of every runtime: sums up reports, writes and shows metrics, and decides when to stop.

It never handles experience or weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from thespis.core.config import Experiment
from thespis.core.context import Report
from thespis.core.errors import ThespisError
from thespis.core.finite_weights import NonFiniteWeights
from thespis.core.program import Program, RoleSpec
from thespis.core.service import description_of
from thespis.core.step_count import StepCount
from thespis.core.system.commit import commit_file, to_json
from thespis.envs.infos import metric
from thespis.runs.callbacks import Callbacks
from thespis.runs.checkpoints import Checkpoints, Found, load_values, read_meta
from thespis.runs.directory import RunDirectory
from thespis.runs.metrics_writer import MetricsWriter
from thespis.runs.monitor import Monitor, RunIdentity
from thespis.runs.processes import process_usage
from thespis.runs.run_log import RunLog
from thespis.runs.saving import Committed, ReportedItems, inserted_items, write_checkpoint
from thespis.runs.stall_detector import StallDetector
from thespis.runs.terminal.screen import Screen
from thespis.runs.terminal.view import RealTime, View

_LAST_UNROLL_SECONDS = 5.0
"""How long actors may finish their last unrolls after the step limit is reached."""


class Session:
    """One run from its first report to its summary. `now` is the runtime's clock; a resumed run continues it."""

    def __init__(
        self, cfg: Experiment, program: Program, run: RunDirectory, screen: Screen, until: int | None = None
    ) -> None:
        """`until`: stop at this number of environment steps, before the end of the run."""
        self.cfg, self.program, self.run, self.screen = cfg, program, run, screen
        self.limit = cfg.total_steps if until is None else until
        self.partial = until is not None
        self.monitor = Monitor(threshold=cfg.stop_at_return)
        self.checkpoints = Checkpoints(run.checkpoints, cfg.keep, program.weight_holders, program.replicated)
        algorithm = None if cfg.learned is None else cfg.learned.name
        self.identity = RunIdentity(program.name, cfg.env_name, cfg.seed, cfg.on, algorithm)
        self.generation = 0
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.blame_user = False
        """Whether the user can fix the error; then no traceback is shown."""
        self.callbacks = Callbacks((), self.log, synchronous=True)
        self.clock = 0.0
        """Start of the runtime's clock in seconds."""
        self.steps: StepCount | None = None
        """The step count that actors share, if the runtime has one."""
        self.stepping: dict[tuple[str, int], bool] = {}
        """Whether each role still takes steps."""
        self._spent_since: float | None = None
        self._writer = MetricsWriter(run, warn=self.log)
        self._log = RunLog(run.log)
        run.keep()
        self._next_row = cfg.report_every
        self._next_save = cfg.checkpoint_every
        self._next_save_steps = cfg.save_every
        self._saved_updates = 0
        self._stalls = StallDetector(cfg.stall_timeout)
        self._unseen_infos = {metric(name, "rollout"): name for name in cfg.track_info}
        self._created, self._resumed_clock = time.monotonic(), 0.0
        self._resumed_at: int | None = None
        self._weights_sha256: str | None = None
        self._checkpoint: str | None = None
        """Name of the newest checkpoint of this run."""
        self._directory_missing = False
        """Whether the log already says that the run directory is missing."""
        kinds = {spec.key: description_of(spec.kind) for spec in program.roles}
        self._intake = {key: kind.intake for key, kind in kinds.items() if kind.intake is not None}
        self._received = dict.fromkeys(self._intake, 0)
        self._limit_counter = next((kind.spends for kind in kinds.values() if kind.spends is not None), "env_steps")
        """The counter that `limit` refers to."""

    # -- while it runs ----------------------------------------------------------------------------

    def log(self, line: str, *, show: bool = True) -> None:
        """Write a line to the log and, with `show`, to the terminal."""
        self._log.write(line)
        if show:
            self.screen.say(line)

    def receive(self, report: Report, now: float) -> None:
        """Add a role's report and check whether the run has reached its end."""
        self.monitor.add(report, now)
        key = (report.role, report.index)
        if key in self._intake:
            self._received[key] += int(report.counters.get(self._intake[key], 0))
        self.stepping[key] = report.stepping
        if cut := report.counters.get("eval/cut_episodes"):
            limit = f"--eval-max-steps {self.cfg.eval_max_steps:,}"
            self.log(f"{cut} episodes of an evaluation did not end within {limit}; they count with their return so far")
        if self.stop_reason is None:
            if self.monitor.reached:
                self.stop_reason = "return_reached"
            elif self.spent and self._last_unrolls_arrived(now):
                self.stop_reason = "total_steps"
            elif self._time_is_up(now):
                self.stop_reason = "total_seconds"

    @property
    def steps_left(self) -> int | None:
        """Steps until the limit, or None if the run does not end by steps."""
        if self.limit is None or self._limit_counter != "env_steps":
            return None
        return max(0, self.limit - self.monitor.env_steps)

    @property
    def spent(self) -> bool:
        """Whether all steps are taken, including steps that are not yet reported."""
        return self._limit_reached() or (self.steps is not None and self.steps.exhausted)

    def _last_unrolls_arrived(self, now: float) -> bool:
        """Return whether all unrolls started before the limit have arrived, or the wait is over."""
        if self._spent_since is None:
            self._spent_since = now
        if self.steps is None or now - self._spent_since >= _LAST_UNROLL_SECONDS:
            return True
        return self._limit_reached() and not any(self.stepping.values())

    def _limit_reached(self) -> bool:
        return self.limit is not None and self.monitor.counters.get(self._limit_counter, 0) >= self.limit

    def _time_is_up(self, now: float) -> bool:
        limit = self.cfg.total_seconds
        return limit is not None and self.monitor.time_spent(now) >= limit

    def tick(self, now: float) -> None:
        """Write a row of metrics if one is due, and refresh the terminal."""
        if now >= self._next_row:
            self.row(now)
        if self.callbacks.poll():
            self.end("callback")
        self.screen.refresh(self.view(now))

    def row(self, now: float, *, last: bool = False) -> None:
        """Write a row of metrics."""
        self._next_row = now + self.cfg.report_every
        self._log.trim()
        if self.run.is_gone():
            self._recreate_directory()
        row = self.monitor.row(now, last=last)
        self._writer.write(self.monitor.env_steps, now, row)
        self._unseen_infos = {key: name for key, name in self._unseen_infos.items() if key not in row}
        self.callbacks.report({"step": self.monitor.env_steps, "time": now, **row})
        self.screen.report(self.view(now))

    def _recreate_directory(self) -> None:
        """Create the run directory again after it was deleted or moved, so that later checkpoints are kept."""
        try:
            self.run.make_again()
            self._log.reopen()
            self._writer.reopen()
        except (OSError, ThespisError) as error:
            if not self._directory_missing:
                self.log(f"{self.run.path} is gone and cannot be created again ({error}); nothing more can be saved")
            self._directory_missing = True
        else:
            self.log(f"{self.run.path} is gone; created it again, but earlier checkpoints and metrics are not in it")
            self._checkpoint, self._directory_missing = None, False

    def view(self, now: float) -> View:
        """Return the data of the terminal view."""
        real = None
        if self.cfg.on == "simulation":
            seconds = time.monotonic() - self._created
            real = RealTime(seconds, seconds / (now - self._resumed_clock) if now > self._resumed_clock else None)
        return View.of(self.monitor, self.identity, self.limit, now, self.cfg.total_seconds, real)

    def end(self, reason: str, error: str | None = None, *, blame_user: bool = False) -> None:
        """Request a stop. Only the first reason counts; later ones are its consequences."""
        if self.stop_reason is None:
            self.stop_reason, self.error, self.blame_user = reason, error, blame_user
            if error:
                self.log(error, show=False)

    def epoch(self, spec: RoleSpec) -> int:
        """Return the epoch of a new incarnation of a role that publishes versions, or 0. It is on disk before its use.

        Every incarnation has a different epoch, so weights from before a crash never look newer.
        """
        return self.run.next_epoch(spec.role) if description_of(spec.kind).publishes else 0

    def restarted(self, spec: RoleSpec) -> None:
        """Count a restart, and the data lost with the previous incarnation."""
        self.stepping.pop(spec.key, None)
        self.monitor.restarted(spec.role, spec.index, description_of(spec.kind).lost)

    def reverted(self, spec: RoleSpec, checkpoint: Path | None) -> None:
        """Count the items that a role received after the checkpoint it restarts from."""
        if spec.key in self._intake:
            before = self._received[spec.key]
            self._load_received(spec.key, checkpoint)
            self.monitor.lost(self._intake[spec.key], before - self._received[spec.key])

    def _load_received(self, key: tuple[str, int], checkpoint: Path | None) -> None:
        values = load_values(checkpoint, *key) if checkpoint is not None else {}
        self._received[key] = inserted_items(values, self._intake[key])

    def came_up(self, now: float) -> None:
        """Restart the stall timeout when a process has built its roles: no update was possible before."""
        self._stalls.begin(self.monitor.updates, now)

    def stalled(self, now: float, starting: Sequence[str] = ()) -> str | None:
        """Describe who waits for whom if no update came within the stall timeout. `starting`: processes not yet up."""
        return self._stalls.check(self.monitor, now, starting)

    # -- saving and resuming ----------------------------------------------------------------------

    def save_due(self, now: float, incomplete: bool = False) -> bool:
        """Return whether to save now. An `incomplete` checkpoint is delayed, to wait for missing processes."""
        steps_due = self._next_save_steps is not None and self.monitor.env_steps >= self._next_save_steps
        # A simulated run discards unfinished unrolls when it saves; without an update between, it might finish none.
        if steps_due and self.monitor.updates > self._saved_updates:
            self._next_save = min(self._next_save, now)
        wait = self.cfg.checkpoint_every if incomplete else 0.0
        if now < self._next_save + wait or not self.monitor.updates:
            return False
        self._schedule_save(now)
        return True

    def _schedule_save(self, now: float) -> None:
        """Schedule the next checkpoint by time, and by steps at the next multiple of `save_every`."""
        self._next_save, self._saved_updates = now + self.cfg.checkpoint_every, self.monitor.updates
        if self.cfg.save_every is not None:
            self._next_save_steps = (self.monitor.env_steps // self.cfg.save_every + 1) * self.cfg.save_every

    def meta(self, now: float) -> dict[str, Any]:
        """Return the metadata of a checkpoint written now."""
        return {
            "update": self.monitor.updates,
            "env_steps": self.monitor.env_steps,
            "time": now,
            "generation": self.generation,
            "score": self.monitor.return_mean,
            "monitor": self.monitor.state(now),
        }

    def received(self) -> dict[tuple[str, int], ReportedItems]:
        """Return the items reported so far by each role with an insert counter."""
        return {key: ReportedItems(counter, self._received[key]) for key, counter in self._intake.items()}

    def committed(self, checkpoint: Committed) -> Path:
        """Record a saved checkpoint."""
        if checkpoint.note is not None:
            self.log(checkpoint.note)
        self._weights_sha256, self._checkpoint = checkpoint.weights_sha256, checkpoint.path.name
        self.callbacks.checkpoint(checkpoint.path)
        return checkpoint.path

    def save_failed(self, error: Exception) -> None:
        """Log that a checkpoint was not saved."""
        before = f"the previous one ({self._checkpoint}) is intact" if self._checkpoint else "there is no earlier one"
        if isinstance(error, NonFiniteWeights) and self.error is None:  # also if the run has taken all its steps
            self.stop_reason, self.error, self.blame_user = "error", str(error), True
        onwards = " and training continues" if self.stop_reason is None else ""
        self.log(f"checkpoint not saved ({error}); {before}{onwards}")

    def end_unsaved(self) -> None:
        """Fail the run because its last checkpoint was not saved."""
        if self.error is None and self.stop_reason != "interrupted":
            newest = f"the newest is {self._checkpoint}" if self._checkpoint else "there is none"
            self.error = f"the run ended ({self.stop_reason}), but its last checkpoint was not saved; {newest}"

    def save(self, write: Callable[[Path], None], now: float, absent: Sequence[str] = ()) -> Path | None:
        """Save a checkpoint of the files that `write` creates in a directory. A failure is logged; training continues.

        `absent`: processes that could not save; the checkpoint uses their last saved state.
        """
        staging: Path | None = None
        try:
            staging = self.checkpoints.stage()
            write(staging)
            meta, received = self.meta(now), self.received()
            return self.committed(write_checkpoint(self.checkpoints, self.program, staging, meta, received, absent))
        except BaseException as error:
            if staging is not None:
                self.checkpoints.discard(staging)
            if not isinstance(error, OSError | RuntimeError | NonFiniteWeights):
                raise
            self.save_failed(error)
            return None

    def load(self, checkpoint: Path) -> None:
        """Load a checkpoint: counters, the window of episodes, the clock."""
        self._checkpoint = checkpoint.name
        meta = read_meta(checkpoint)
        self.clock = float(meta["time"])
        self.monitor = Monitor.restore(
            meta["monitor"], self.cfg.stop_at_return, started=self.clock, processes=self.cfg.on != "simulation"
        )
        # Older checkpoints do not have this counter.
        self.monitor.counters.setdefault(self._limit_counter, self.monitor.env_steps)
        self.generation = int(meta["generation"]) + 1
        self._next_row = self.clock + self.cfg.report_every
        self._schedule_save(self.clock)
        self._stalls.resume(self.monitor.updates, self.clock)
        for key in self._intake:
            self._load_received(key, checkpoint)

    def find_checkpoint(self) -> Found:
        """Find the newest valid checkpoint. The log names newer, damaged ones."""
        found = self.checkpoints.newest_valid()
        for skipped in found.skipped:
            self.log(f"skipped {skipped}")
        return found

    def resume(self) -> Path | None:
        """Resume from the newest valid checkpoint and log its name; return None if there is no checkpoint."""
        swept = self.run.sweep()
        if swept:
            self.log(f"removed {', '.join(swept)}, left half-written by a killed process")
        found = self.find_checkpoint()
        if found.path is None:
            if found.skipped:
                raise ThespisError(f"every checkpoint in {self.run.checkpoints} is damaged; start a new run")
            self.log("there is no checkpoint yet; starting over")
            self.generation = 1
            self._rewind(-1)
            return None
        self.load(found.path)
        if self._limit_reached():
            raise ThespisError(
                f"{self.run.path} has taken its {self.monitor.env_steps:,} steps; give resume a higher --total-steps"
            )
        if self._time_is_up(self.clock):
            raise ThespisError(f"{self.run.path} has used its time; give resume a higher --total-seconds")
        if self.monitor.reached:
            raise ThespisError(f"{self.run.path} has reached its return; give resume a higher --stop-at-return")
        self.log(f"resuming {found.path.name}, the newest valid checkpoint, at {self.monitor.env_steps:,} steps")
        self._resumed_clock, self._resumed_at = self.clock, self.monitor.env_steps
        self._rewind(self.monitor.env_steps)
        return found.path

    def _rewind(self, step: int) -> None:
        """Remove the metrics of steps that are repeated, and the old summary."""
        rows = self._writer.rewind(step, self.clock)
        if rows:
            self.log(f"removed {rows} rows of metrics.jsonl: steps after {max(0, step):,} are taken again")
        with suppress(OSError):
            self.run.summary.unlink(missing_ok=True)

    # -- the end ----------------------------------------------------------------------------------

    def topology(self, extra: dict[str, Any]) -> None:
        """Write topology.json. Raises `OSError` on a full disk, which does not end the run."""
        commit_file(self.run.topology, to_json({**self.program.describe(), **extra}))

    def topology_failed(self, error: OSError) -> None:
        """Log that topology.json was not written."""
        self.log(f"topology.json not written ({error})")

    def finish(self, now: float, startup_seconds: float | None) -> dict[str, Any]:
        """Write the last row of metrics and summary.json, however the run ended; return the summary."""
        self.row(now, last=True)
        self.screen.refresh(self.view(now))
        summary = self.monitor.summary(
            self.identity, self.stop_reason or "error", now, startup_seconds, self._weights_sha256
        )
        summary["processes"] = process_usage(self.program, self.monitor)
        summary["checkpoint"] = self._checkpoint
        if self.monitor.episodes:
            for name in self._unseen_infos.values():
                self.log(f"--track-info {name}: no episode ended with a number of that name in its info")
        summary["exploration"] = self.cfg.exploration
        summary["real_seconds"] = time.monotonic() - self._created
        summary["resumed_at_steps"] = self._resumed_at
        try:
            commit_file(self.run.summary, to_json(summary))
        except OSError as error:
            self.log(f"summary.json not written ({error})")
        return summary

    def close(self) -> None:
        """Close the files, and remove unfinished files of killed processes."""
        self.callbacks.close()
        self._writer.close()
        self._log.close()
        self.run.tidy()
