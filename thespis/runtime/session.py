"""What watches a run, whatever performs it: adds up reports, writes them down, shows them, says when to stop.

The driver's half of every runtime. It never touches experience or weights.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from thespis.config import Experiment
from thespis.errors import ThespisError
from thespis.program import Program, RoleSpec
from thespis.runs.checkpoints import Checkpoints, load_values, policy_weights, read_meta, weights_sha256
from thespis.runs.commit import commit_file, to_json
from thespis.runs.directory import RunDirectory
from thespis.runs.monitor import Identity, Monitor
from thespis.runs.screen import Screen
from thespis.runs.view import View
from thespis.runs.writers import MetricsWriter
from thespis.runtime.context import Report

_START_SECONDS = 300.0
"""How long processes may take to start before the run counts as stalled: imports over a network can take minutes."""


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
        self.checkpoints = Checkpoints(run.checkpoints, keep=cfg.keep)
        self.identity = Identity(program.name, cfg.env_name, cfg.seed, cfg.on)
        self.generation = 0
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.blame_user = False
        """The error is one the user can mend; a traceback would not help."""
        self.clock = 0.0
        """Where the runtime's clock starts."""
        self._writer = MetricsWriter(run, warn=self.log)
        self._log = run.log.open("ab", buffering=0)
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._log.close()
            raise ThespisError(f"{run.path} is in use: another process is training or resuming it") from None
        self._born = time.monotonic()
        self._next_row = cfg.report_every
        self._next_save = cfg.checkpoint_every
        self._last_update = (0, 0.0)
        self._weights_sha256: str | None = None
        kept = {spec.key: getattr(spec.kind, "HOLDS", None) for spec in program.roles}
        self._holds: dict[tuple[str, int], str] = {key: name for key, name in kept.items() if name}
        self._held = dict.fromkeys(self._holds, 0)

    # -- while it runs ----------------------------------------------------------------------------

    def log(self, line: str, *, show: bool = True) -> None:
        with suppress(OSError):  # a full disk is no reason to end a run
            self._log.write(f"[{time.monotonic() - self._born:8.2f}] {line}\n".encode())
        if show:
            self.screen.say(line)

    def receive(self, report: Report, now: float) -> None:
        self.monitor.add(report, now)
        key = (report.role, report.index)
        if key in self._holds:
            self._held[key] += int(report.counters.get(self._holds[key], 0))
        if self.stop_reason is None:
            if self.monitor.reached:
                self.stop_reason = "return_reached"
            elif self._steps_are_taken():
                self.stop_reason = "total_steps"
            elif self._time_is_up(now):
                self.stop_reason = "total_seconds"

    def _steps_are_taken(self) -> bool:
        return self.limit is not None and self.monitor.env_steps >= self.limit

    def _time_is_up(self, now: float) -> bool:
        first, limit = self.monitor.first_step, self.cfg.total_seconds
        return limit is not None and first is not None and self.monitor.elapsed(now) - first.seconds >= limit

    def tick(self, now: float) -> None:
        """Write a row if one is due, and refresh what a person sees."""
        if now >= self._next_row:
            self.row(now)
        self.screen.refresh(self.view(now))

    def row(self, now: float) -> None:
        self._next_row = now + self.cfg.report_every
        self._writer.write(self.monitor.env_steps, now, self.monitor.row(now))
        self.screen.report(self.view(now))

    def view(self, now: float) -> View:
        return View.of(self.monitor, self.identity, self.limit, now, self.cfg.total_seconds)

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
        return self.run.next_epoch(spec.role) if getattr(spec.kind, "PUBLISHES", False) else 0

    def restarted(self, spec: RoleSpec) -> None:
        """Count a restart, and what was lost with the life before it."""
        lost = getattr(spec.kind, "LOST", None)
        self.monitor.restarted(spec.role, spec.index, lost)

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
        self._last_update = (self.monitor.updates, now)

    def stalled(self, now: float, starting: Sequence[str] = ()) -> str | None:
        """Who waits for whom, once there has been no update for the stall timeout.

        `starting`: processes that have not built their roles yet. A busy machine may take long to start them.
        """
        if self.monitor.updates != self._last_update[0] or any(self.monitor.away.values()):
            self._last_update = (self.monitor.updates, now)
        limit = max(self.cfg.stall_timeout, _START_SECONDS) if starting else self.cfg.stall_timeout
        if now - self._last_update[1] < limit:
            return None
        absent = "".join(f"; {home} has not started" for home in starting)
        return f"no update for {limit:g} s; {self.who_waits()}{absent}"

    def who_waits(self) -> str:
        waits = [
            f"{role} {index} waits for {edge}" for (role, index), edge in sorted(self.monitor.waiting.items()) if edge
        ]
        return "; ".join(waits) if waits else "no role is waiting on another"

    # -- saving and resuming ----------------------------------------------------------------------

    def save_due(self, now: float) -> bool:
        if now < self._next_save or not self.monitor.updates:
            return False
        self._next_save = now + self.cfg.checkpoint_every
        return True

    def commit(self, staging: Path, now: float) -> Path:
        """Make a checkpoint of a directory that every role has written its state into."""
        meta = {
            "update": self.monitor.updates,
            "env_steps": self.monitor.env_steps,
            "time": now,
            "generation": self.generation,
            "score": self.monitor.return_mean,
            "monitor": self.monitor.state(now),
        }
        weights = policy_weights(staging)
        self._weights_sha256 = weights_sha256(weights) if weights else None
        return self.checkpoints.commit(staging, meta)

    def save_failed(self, staging: Path | None, error: Exception) -> None:
        if staging is not None:
            self.checkpoints.discard(staging)
        onwards = " and training goes on" if self.stop_reason is None else ""
        self.log(f"checkpoint not saved ({error}); the previous one is intact{onwards}")

    def save(self, write: Callable[[Path], None], now: float) -> Path | None:
        """A checkpoint of what `write` puts into a directory. A failed one is said, and training goes on."""
        staging: Path | None = None
        try:
            staging = self.checkpoints.stage()
            write(staging)
            return self.commit(staging, now)
        except OSError as error:
            self.save_failed(staging, error)
            return None
        except BaseException:
            if staging is not None:
                self.checkpoints.discard(staging)
            raise

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: counters, the window of episodes, the clock."""
        meta = read_meta(checkpoint)
        self.clock = float(meta["time"])
        self.monitor = Monitor.restore(meta["monitor"], self.cfg.stop_at_return, started=self.clock)
        self.generation = int(meta["generation"]) + 1
        self._next_row = self.clock + self.cfg.report_every
        self._next_save = self.clock + self.cfg.checkpoint_every
        if self.monitor.updates != self._last_update[0]:  # else cuts that follow too soon would hide a stall
            self._last_update = (self.monitor.updates, self.clock)
        for key in self._holds:
            self._hold(key, checkpoint)

    def resume(self) -> Path | None:
        """Go on from the newest valid checkpoint, and say which it is and why."""
        swept = self.run.sweep()
        if swept:
            self.log(f"removed {', '.join(swept)}, left half-written by a killed process")
        found = self.checkpoints.newest_valid()
        for skipped in found.skipped:
            self.log(f"skipped {skipped}")
        if found.path is None:
            if found.skipped:
                raise ThespisError(f"every checkpoint in {self.run.checkpoints} is damaged; start a new run")
            self.log("there is no checkpoint yet; starting over")
            self.generation = 1
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
        return found.path

    # -- the end ----------------------------------------------------------------------------------

    def topology(self, extra: dict[str, Any]) -> None:
        commit_file(self.run.topology, to_json({**self.program.describe(), **extra}))

    def finish(self, now: float, startup_seconds: float | None) -> dict[str, Any]:
        """The last row and summary.json, however the run ended."""
        self.row(now)
        self.screen.refresh(self.view(now))
        summary = self.monitor.summary(
            self.identity, self.stop_reason or "error", now, startup_seconds, self._weights_sha256
        )
        summary["processes"] = self._processes()
        try:
            commit_file(self.run.summary, to_json(summary))
        except OSError as error:
            self.log(f"summary.json not written ({error})")
        return summary

    def _processes(self) -> dict[str, dict[str, Any]]:
        """What each kind of process took: CPU seconds of all of its kind, and the mean of their peaks of memory.

        Roles that share a process cannot be told apart here. The simulation has no processes: null.
        """
        monitor = self.monitor
        kinds: dict[str, dict[str, Any]] = {}
        for home, specs in self.program.processes.items():
            first = specs[0]
            name = first.role if len(specs) == 1 else home.removesuffix(f"-{first.index}")
            if name in kinds:
                kinds[name]["count"] += 1
                continue
            sizes = [size for size in monitor.rss_mb.get(first.role, {}).values() if size]
            kinds[name] = {
                "roles": [spec.role for spec in specs],
                "count": 1,
                "cpu_seconds": monitor.cpu_seconds.get(first.role),
                "rss_mb": sum(sizes) / len(sizes) if sizes else None,
            }
        return kinds

    def close(self) -> None:
        self._writer.close()
        self._log.close()
