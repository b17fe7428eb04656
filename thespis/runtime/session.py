"""What watches a run, whatever performs it: adds up reports, writes them down, shows them, says when to stop.

The driver's half of every runtime. It never touches experience or weights.
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
from thespis.core.finite import NonFiniteWeights
from thespis.core.program import Program, RoleSpec
from thespis.core.service import describe
from thespis.core.step_count import StepCount
from thespis.core.system.commit import commit_file, to_json
from thespis.envs.infos import metric
from thespis.runs.callbacks import Callbacks
from thespis.runs.checkpoints import Checkpoints, Found, load_values, read_meta
from thespis.runs.directory import RunDirectory
from thespis.runs.log import RunLog
from thespis.runs.monitor import Identity, Monitor
from thespis.runs.processes import process_usage
from thespis.runs.saving import Committed, write_checkpoint
from thespis.runs.screen import Screen
from thespis.runs.stalls import StallDetector
from thespis.runs.view import RealTime, View
from thespis.runs.writers import MetricsWriter

_LAST_UNROLL_SECONDS = 5.0
"""How long those who take steps may be at their last unrolls, once all steps are taken."""


class Session:
    """One run from its first report to its summary. `now` is the runtime's clock, which a resumed run continues."""

    def __init__(
        self, cfg: Experiment, program: Program, run: RunDirectory, screen: Screen, until: int | None = None
    ) -> None:
        """`until`: environment steps to stop at, if that is not when the run is over."""
        self.cfg, self.program, self.run, self.screen = cfg, program, run, screen
        self.limit = cfg.total_steps if until is None else until
        self.partial = until is not None
        self.monitor = Monitor(threshold=cfg.stop_at_return)
        self.checkpoints = Checkpoints(run.checkpoints, keep=cfg.keep, required=program.weight_holders)
        algorithm = None if cfg.learned is None else cfg.learned.name
        self.identity = Identity(program.name, cfg.env_name, cfg.seed, cfg.on, algorithm)
        self.generation = 0
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.blame_user = False
        """The error is one the user can mend; a traceback would not help."""
        self.callbacks = Callbacks((), self.log, synchronous=True)
        self.clock = 0.0
        """Where the runtime's clock starts."""
        self.steps: StepCount | None = None
        """By which those who take steps know when all are taken, if they do."""
        self.stepping: dict[tuple[str, int], bool] = {}
        """Who takes steps, and has not come to rest."""
        self._spent_since: float | None = None
        self._writer = MetricsWriter(run, warn=self.log)
        self._log = RunLog(run.log)
        run.keep()
        self._next_row = cfg.report_every
        self._next_save = cfg.checkpoint_every
        self._next_save_steps = cfg.save_every
        self._stalls = StallDetector(cfg.stall_timeout)
        self._not_seen = {metric(name, "rollout"): name for name in cfg.track_info}
        self._born, self._began = time.monotonic(), 0.0
        self._resumed_at: int | None = None
        self._weights_sha256: str | None = None
        self._checkpoint: str | None = None
        """The newest checkpoint of this run."""
        self._missing = False
        """The run directory is gone, which was said."""
        kinds = {spec.key: describe(spec.kind) for spec in program.roles}
        self._holds = {key: kind.intake for key, kind in kinds.items() if kind.intake is not None}
        self._held = dict.fromkeys(self._holds, 0)
        self._spends = next((kind.spends for kind in kinds.values() if kind.spends is not None), "env_steps")
        """The counter that `limit` is about."""

    # -- while it runs ----------------------------------------------------------------------------

    def log(self, line: str, *, show: bool = True) -> None:
        self._log.write(line)
        if show:
            self.screen.say(line)

    def receive(self, report: Report, now: float) -> None:
        self.monitor.add(report, now)
        key = (report.role, report.index)
        if key in self._holds:
            self._held[key] += int(report.counters.get(self._holds[key], 0))
        self.stepping[key] = report.stepping
        if cut := report.counters.get("eval/cut_episodes"):
            limit = f"--eval-max-steps {self.cfg.eval_max_steps:,}"
            self.log(f"{cut} episodes of an evaluation did not end within {limit}; they count with their return so far")
        if self.stop_reason is None:
            if self.monitor.reached:
                self.stop_reason = "return_reached"
            elif self.spent and self._last_unrolls_are_in(now):
                self.stop_reason = "total_steps"
            elif self._time_is_up(now):
                self.stop_reason = "total_seconds"

    @property
    def steps_left(self) -> int | None:
        """Steps that may still be taken, if it is by them that the run ends."""
        if self.limit is None or self._spends != "env_steps":
            return None
        return max(0, self.limit - self.monitor.env_steps)

    @property
    def spent(self) -> bool:
        """Whether all steps are taken; some may not have been reported yet."""
        return self._steps_are_taken() or (self.steps is not None and self.steps.spent)

    def _last_unrolls_are_in(self, now: float) -> bool:
        """Whether to wait no longer for unrolls that were begun in time. Who does not know the count begins more."""
        if self._spent_since is None:
            self._spent_since = now
        if self.steps is None or now - self._spent_since >= _LAST_UNROLL_SECONDS:
            return True
        return self._steps_are_taken() and not any(self.stepping.values())

    def _steps_are_taken(self) -> bool:
        return self.limit is not None and self.monitor.counters.get(self._spends, 0) >= self.limit

    def _time_is_up(self, now: float) -> bool:
        first, limit = self.monitor.first_step, self.cfg.total_seconds
        return limit is not None and first is not None and self.monitor.elapsed(now) - first.seconds >= limit

    def tick(self, now: float) -> None:
        """Write a row if one is due, and refresh what a person sees."""
        if now >= self._next_row:
            self.row(now)
        if self.callbacks.poll():
            self.end("callback")
        self.screen.refresh(self.view(now))

    def row(self, now: float, *, last: bool = False) -> None:
        self._next_row = now + self.cfg.report_every
        self._log.bound()
        if self.run.is_gone():
            self._make_again()
        row = self.monitor.row(now, last=last)
        self._writer.write(self.monitor.env_steps, now, row)
        self._not_seen = {key: name for key, name in self._not_seen.items() if key not in row}
        self.callbacks.report({"step": self.monitor.env_steps, "time": now, **row})
        self.screen.report(self.view(now))

    def _make_again(self) -> None:
        """The run directory was deleted or moved: begin a new one, so that what is learned from now on is kept."""
        try:
            self.run.make_again()
            self._log.reopen()
            self._writer.reopen()
        except (OSError, ThespisError) as error:
            if not self._missing:
                self.log(f"{self.run.path} is gone and cannot be made again ({error}); nothing more can be saved")
            self._missing = True
        else:
            self.log(f"{self.run.path} is gone; made it again, but earlier checkpoints and metrics are not in it")
            self._checkpoint, self._missing = None, False

    def view(self, now: float) -> View:
        real = None
        if self.cfg.on == "simulation":
            seconds = time.monotonic() - self._born
            real = RealTime(seconds, seconds / (now - self._began) if now > self._began else None)
        return View.of(self.monitor, self.identity, self.limit, now, self.cfg.total_seconds, real)

    def end(self, reason: str, error: str | None = None, *, blame_user: bool = False) -> None:
        """Ask the runtime to stop. The first reason counts; later ones are its consequences."""
        if self.stop_reason is None:
            self.stop_reason, self.error, self.blame_user = reason, error, blame_user
            if error:
                self.log(error, show=False)

    def epoch(self, spec: RoleSpec) -> int:
        """The epoch of a life that is about to start, if the role publishes versions; on disk before it is used.

        No other life ever gets the same, so weights from before a crash never look newer.
        """
        return self.run.next_epoch(spec.role) if describe(spec.kind).publishes else 0

    def restarted(self, spec: RoleSpec) -> None:
        """Count a restart, and what was lost with the life before it."""
        self.stepping.pop(spec.key, None)
        self.monitor.restarted(spec.role, spec.index, describe(spec.kind).lost)

    def reverted(self, spec: RoleSpec, checkpoint: Path | None) -> None:
        """Count what a role had taken in since the checkpoint from which its next life goes on."""
        if spec.key in self._holds:
            before = self._held[spec.key]
            self._hold(spec.key, checkpoint)
            self.monitor.lost(self._holds[spec.key], before - self._held[spec.key])

    def _hold(self, key: tuple[str, int], checkpoint: Path | None) -> None:
        values = load_values(checkpoint, *key) if checkpoint is not None else {}
        self._held[key] = int(values.get(self._holds[key].rpartition("/")[2], 0))

    def came_up(self, now: float) -> None:
        """A process has built its roles: nobody can be expected to have learned before."""
        self._stalls.begin(self.monitor.updates, now)

    def stalled(self, now: float, starting: Sequence[str] = ()) -> str | None:
        """Who waits for whom, once there has been no update for the stall timeout. `starting`: processes not yet up."""
        return self._stalls.look(self.monitor, now, starting)

    # -- saving and resuming ----------------------------------------------------------------------

    def save_due(self, now: float, incomplete: bool = False) -> bool:
        """Whether to save now. One that would be `incomplete` waits for a while for those that it needs."""
        if self._next_save_steps is not None and self.monitor.env_steps >= self._next_save_steps:
            self._next_save = min(self._next_save, now)
        wait = self.cfg.checkpoint_every if incomplete else 0.0
        if now < self._next_save + wait or not self.monitor.updates:
            return False
        self._expect_save(now)
        return True

    def _expect_save(self, now: float) -> None:
        """The next checkpoint is due after so many seconds, or at the next multiple of so many steps if sooner."""
        self._next_save = now + self.cfg.checkpoint_every
        if self.cfg.save_every is not None:
            self._next_save_steps = (self.monitor.env_steps // self.cfg.save_every + 1) * self.cfg.save_every

    def meta(self, now: float) -> dict[str, Any]:
        """What a checkpoint that is made now says of the run."""
        return {
            "update": self.monitor.updates,
            "env_steps": self.monitor.env_steps,
            "time": now,
            "generation": self.generation,
            "score": self.monitor.return_mean,
            "monitor": self.monitor.state(now),
        }

    def committed(self, checkpoint: Committed) -> Path:
        """A checkpoint was saved."""
        if checkpoint.note is not None:
            self.log(checkpoint.note)
        self._weights_sha256, self._checkpoint = checkpoint.weights_sha256, checkpoint.path.name
        self.callbacks.checkpoint(checkpoint.path)
        return checkpoint.path

    def save_failed(self, error: Exception) -> None:
        """Say that a checkpoint was not saved."""
        before = f"the previous one ({self._checkpoint}) is intact" if self._checkpoint else "there is no earlier one"
        if isinstance(error, NonFiniteWeights) and self.error is None:  # also of a run that has taken all its steps
            self.stop_reason, self.error, self.blame_user = "error", str(error), True
        onwards = " and training goes on" if self.stop_reason is None else ""
        self.log(f"checkpoint not saved ({error}); {before}{onwards}")

    def end_unsaved(self) -> None:
        """The last checkpoint was not saved, so the run has failed, whatever else it reached."""
        if self.error is None and self.stop_reason != "interrupted":
            newest = f"the newest is {self._checkpoint}" if self._checkpoint else "there is none"
            self.error = f"the run ended ({self.stop_reason}), but its last checkpoint was not saved; {newest}"

    def save(self, write: Callable[[Path], None], now: float, absent: Sequence[str] = ()) -> Path | None:
        """A checkpoint of what `write` puts into a directory. A failed one is said, and training goes on.

        `absent`: processes that could not save; their last saved state stands in for them.
        """
        staging: Path | None = None
        try:
            staging = self.checkpoints.stage()
            write(staging)
            return self.committed(write_checkpoint(self.checkpoints, self.program, staging, self.meta(now), absent))
        except BaseException as error:
            if staging is not None:
                self.checkpoints.discard(staging)
            if not isinstance(error, OSError | RuntimeError | NonFiniteWeights):
                raise
            self.save_failed(error)
            return None

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: counters, the window of episodes, the clock."""
        self._checkpoint = checkpoint.name
        meta = read_meta(checkpoint)
        self.clock = float(meta["time"])
        self.monitor = Monitor.restore(
            meta["monitor"], self.cfg.stop_at_return, started=self.clock, processes=self.cfg.on != "simulation"
        )
        self.monitor.counters.setdefault(self._spends, self.monitor.env_steps)  # runs of before had none
        self.generation = int(meta["generation"]) + 1
        self._next_row = self.clock + self.cfg.report_every
        self._expect_save(self.clock)
        self._stalls.resume(self.monitor.updates, self.clock)
        for key in self._holds:
            self._hold(key, checkpoint)

    def find_checkpoint(self) -> Found:
        """The newest valid checkpoint. The log names those that are newer and damaged."""
        found = self.checkpoints.newest_valid()
        for skipped in found.skipped:
            self.log(f"skipped {skipped}")
        return found

    def resume(self) -> Path | None:
        """Go on from the newest valid checkpoint, and say which it is and why."""
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
        if self._steps_are_taken():
            raise ThespisError(
                f"{self.run.path} has taken its {self.monitor.env_steps:,} steps; give resume a higher --total-steps"
            )
        if self._time_is_up(self.clock):
            raise ThespisError(f"{self.run.path} has had its seconds; give resume a higher --total-seconds")
        if self.monitor.reached:
            raise ThespisError(f"{self.run.path} has reached its return; give resume a higher --stop-at-return")
        self.log(f"resuming {found.path.name}, the newest valid checkpoint, at {self.monitor.env_steps:,} steps")
        self._began, self._resumed_at = self.clock, self.monitor.env_steps
        self._rewind(self.monitor.env_steps)
        return found.path

    def _rewind(self, step: int) -> None:
        """Take back what was written of the steps that are taken again, and the summary of the earlier end."""
        rows = self._writer.rewind(step, self.clock)
        if rows:
            self.log(f"removed {rows} rows of metrics.jsonl: steps after {max(0, step):,} are taken again")
        with suppress(OSError):
            self.run.summary.unlink(missing_ok=True)

    # -- the end ----------------------------------------------------------------------------------

    def topology(self, extra: dict[str, Any]) -> None:
        """Write down who is where. Raises `OSError` on a full disk, which is no reason to end the run."""
        commit_file(self.run.topology, to_json({**self.program.describe(), **extra}))

    def topology_failed(self, error: OSError) -> None:
        self.log(f"topology.json not written ({error})")

    def finish(self, now: float, startup_seconds: float | None) -> dict[str, Any]:
        """The last row and summary.json, however the run ended."""
        self.row(now, last=True)
        self.screen.refresh(self.view(now))
        summary = self.monitor.summary(
            self.identity, self.stop_reason or "error", now, startup_seconds, self._weights_sha256
        )
        summary["processes"] = process_usage(self.program, self.monitor)
        summary["checkpoint"] = self._checkpoint
        if self.monitor.episodes:
            for name in self._not_seen.values():
                self.log(f"--track-info {name}: no episode ended with a number of that name in its info")
        summary["exploration"] = self.cfg.exploration
        summary["real_seconds"] = time.monotonic() - self._born
        summary["resumed_at_steps"] = self._resumed_at
        try:
            commit_file(self.run.summary, to_json(summary))
        except OSError as error:
            self.log(f"summary.json not written ({error})")
        return summary

    def close(self) -> None:
        """Close the files, and remove what processes left that were killed while they saved."""
        self.callbacks.close()
        self._writer.close()
        self._log.close()
        self.run.tidy()
