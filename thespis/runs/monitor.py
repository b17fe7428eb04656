"""Monitor: sums the reports of all roles into rows of metrics and a summary.

It reads no clock; callers pass every time, virtual or real. Inside, time is the run time of `RunClock`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from thespis.core.context import Report, Stat, Traffic
from thespis.core.types import Episode
from thespis.envs.infos import means, metric
from thespis.runs.interval import Interval, RoleTotal
from thespis.runs.run_clock import Mark, RunClock

WINDOW = 100
"""Training episodes in the mean return, as in Stable-Baselines3."""
_HISTORY = 240
_EVENTS = {"learner_events": "group/", "gradients": "gradients/", "weights": "weights/"}  # in the summary: counters


@dataclass(frozen=True)
class RunIdentity:
    """The settings that identify a run. `on`: the runtime. `algorithm`: None if the architecture has no choice."""

    architecture: str
    env: str
    seed: int
    on: str
    algorithm: str | None = None


def count_lost(counters: dict[str, int], name: str, number: int) -> None:
    """Count lost items of the insert counter `name`, so that inserted minus lost is what its role holds.

    A negative number is of items that a checkpoint holds after all: they were counted as lost, or in no report.
    """
    lost = counters.get(f"dropped/{name}", 0) + number
    if lost > 0 or f"dropped/{name}" in counters:
        counters[f"dropped/{name}"] = max(0, lost)
    if lost < 0:
        counters[name] = counters.get(name, 0) - lost


class Monitor:
    """Totals of a run. `threshold`: the mean return of the last 100 training episodes that counts as solved."""

    def __init__(self, threshold: float | None = None, started: float = 0.0) -> None:
        self.threshold = threshold
        self.counters: dict[str, int] = {}
        self.restarts: dict[str, int] = {}
        self.edges: dict[str, Traffic] = {}
        self.lag = Stat()
        self.lags: dict[int, int] = {}
        self.episodes = 0
        self.crossed: Mark | None = None
        """When the threshold was first reached; stays, even if the return falls again."""
        self.eval_reward: float | None = None
        self.eval_episodes = 0
        self.eval_steps: int | None = None
        """Total environment steps at the newest evaluation."""
        self.rss_mb: dict[str, dict[int, float]] = {}
        self.cpu_seconds: dict[str, float] = {}
        """By role, of the processes whose first role it is."""
        self.roles: dict[str, RoleTotal] = {}
        """Totals of each role since the first update; before it, roles wait for each other's start."""
        self.nodes: dict[str, str] = {}
        """The node of each role, on a runtime with nodes."""
        self.waiting: dict[tuple[str, int], str | None] = {}
        """The edge each role currently waits on, for the report of a stall."""
        self.in_job: dict[tuple[str, int], bool] = {}
        """Which roles run a long job with its own watchdog; no update from them is not a stall."""
        self.history: deque[float] = deque(maxlen=_HISTORY)
        """Mean return at each row, for the curve in the panel."""
        self.latest: dict[str, float] = {}
        """The newest value of every metric; a row omits metrics without data in its interval."""
        self._window: deque[Episode] = deque(maxlen=WINDOW)
        self._clock = RunClock(started)
        self._open = Interval(0.0)
        self._closed: Interval | None = None

    def elapsed(self, now: float) -> float:
        """Run time at `now`."""
        return self._clock.elapsed(now)

    def time_spent(self, now: float) -> float:
        """Seconds since the first step, without the start-ups of resumed runs."""
        return self._clock.time_spent(now)

    @property
    def env_steps(self) -> int:
        """Environment steps taken."""
        return self.counters.get("env_steps", 0)

    @property
    def updates(self) -> int:
        """Updates made."""
        return self.counters.get("updates", 0)

    @property
    def dropped(self) -> dict[str, int]:
        """Counts of everything dropped, by kind."""
        return self._counted("dropped/")

    def _counted(self, prefix: str) -> dict[str, int]:
        return {name.removeprefix(prefix): n for name, n in self.counters.items() if name.startswith(prefix)}

    @property
    def lag_counts(self) -> dict[str, int]:
        """Steps learned from at each lag, in ascending order; above 7 a key covers a quarter of an octave."""
        return {str(lag): self.lags[lag] for lag in sorted(self.lags)}

    @property
    def samples_per_insert(self) -> float | None:
        """Over the whole run, as the limiter of a replay counts it."""
        inserted = self.counters.get("replay/inserted", 0)
        return self.counters.get("replay/sampled", 0) / inserted if inserted else None

    @property
    def return_mean_100(self) -> float | None:
        """Mean return of the last 100 training episodes; None before there are 100."""
        return self.return_mean if len(self._window) == WINDOW else None

    @property
    def return_mean(self) -> float | None:
        """Mean return of the episodes in the window so far."""
        return math.fsum(e.reward for e in self._window) / len(self._window) if self._window else None

    @property
    def return_episodes(self) -> int:
        """Number of training episodes in `return_mean`."""
        return len(self._window)

    @property
    def reached(self) -> bool:
        """Whether the mean over 100 episodes has reached the threshold at any episode so far."""
        return self.crossed is not None

    @property
    def learning_seconds(self) -> float | None:
        """Run time from the first update to the last."""
        return self._clock.learning_seconds

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per second of `learning_seconds`."""
        return self._clock.steps_per_second

    @property
    def shown(self) -> Interval:
        """The last finished interval, or the first one while it is still open."""
        return self._closed or self._open

    def add(self, report: Report, now: float) -> None:
        """Add one report. Within it, steps count before the episodes that they finished."""
        self._open.add(report)
        for name, count in report.counters.items():
            self.counters[name] = self.counters.get(name, 0) + int(count)
        for name, traffic in report.edges.items():
            total = self.edges.setdefault(name, Traffic())
            total.calls += traffic.calls
            total.bytes += traffic.bytes
            total.waited += traffic.waited
            total.sent += traffic.sent
        if "lag" in report.stats:
            self.lag.merge(report.stats["lag"])
        for lag, steps in report.lags.items():
            self.lags[lag] = self.lags.get(lag, 0) + steps
        if "eval/mean_reward" in report.stats:
            self.eval_reward = report.stats["eval/mean_reward"].mean
            self.eval_episodes = report.counters.get("eval/episodes", 0)
            self.eval_steps = self.env_steps
        self.rss_mb.setdefault(report.role, {})[report.index] = report.rss_mb
        if report.cpu_seconds:
            self.cpu_seconds[report.role] = self.cpu_seconds.get(report.role, 0.0) + report.cpu_seconds
        self.waiting[report.role, report.index] = report.waiting
        self.in_job[report.role, report.index] = report.in_job
        if self._clock.learning:
            self.roles.setdefault(report.role, RoleTotal()).add(report)
        here = self._clock.add(report.counters, self.env_steps, self.updates, now)
        for episode in report.episodes:
            self._add_episode(episode, here)

    def _add_episode(self, episode: Episode, here: Mark) -> None:
        self.episodes += 1
        if self.crossed is not None:
            # This mean ends the run. Episodes that finish during shutdown must not change it.
            return
        # Plain numbers: a numpy scalar from an environment would not fit in the JSON of a checkpoint.
        self._window.append(Episode(float(episode.reward), int(episode.length), episode.info))
        if self.threshold is None:
            return
        mean = self.return_mean_100
        if mean is not None and mean >= self.threshold:
            self.crossed = here

    def count_steps(self, steps: int) -> None:
        """Count steps that a process took but died before it reported them."""
        self.counters["env_steps"] = self.env_steps + steps
        self._open.env_steps += steps

    def restarted(self, role: str, index: int, lost: str | None = None) -> None:
        """Count a restart and its loss; the lost process no longer waits."""
        if lost is not None:
            self.counters[f"dropped/{lost}"] = self.counters.get(f"dropped/{lost}", 0) + 1
        self.restarts[role] = self.restarts.get(role, 0) + 1
        self.waiting.pop((role, index), None)
        self.in_job.pop((role, index), None)

    def lost(self, name: str, number: int) -> None:
        """Count items of a role's memory that no checkpoint holds, under their insert counter's name."""
        count_lost(self.counters, name, number)

    def row(self, now: float, *, last: bool = False) -> dict[str, float]:
        """One row of metrics over the time since the previous row; omits metrics without data.

        `last`: the run is over, so its speed counts until the last step: no role steps during the final evaluation.
        """
        interval, end = self._open, self.elapsed(now)
        seconds = end - interval.start
        stepping = self._clock.last_step - interval.start if last else seconds
        row: dict[str, float] = {}
        mean = self.return_mean
        if mean is not None:
            row["rollout/ep_rew_mean"] = mean
            row["rollout/ep_len_mean"] = math.fsum(e.length for e in self._window) / len(self._window)
            row["time/episodes"] = self.episodes
            row.update({metric(name, "rollout"): mean for name, mean in means(self._window).items()})
            self.history.append(mean)
        if stepping > 0.0:
            row["time/fps"] = interval.env_steps / stepping
        for name, stat in interval.stats.items():
            if not stat.count:
                continue
            if name == "lag":
                row["lag/mean"], row["lag/max"] = stat.mean, stat.maximum
            else:
                row[name] = stat.mean
        if "eval/mean_reward" in row and self.eval_reward is not None:
            row["eval/mean_reward"] = self.eval_reward
        if self.samples_per_insert is not None:
            row["replay/samples_per_insert"] = self.samples_per_insert
        row.update({name: n for name, n in self.counters.items() if name.startswith(tuple(_EVENTS.values()))})
        if seconds > 0.0:
            row.update({f"edge/{name}/bytes_per_s": n / seconds for name, n in interval.bytes.items()})
        for role, share in interval.roles().items():
            row[f"role/{role}/wait_share"] = share.wait
            sizes = self.rss_mb[role].values()
            row[f"role/{role}/rss_mb"] = sum(sizes) / len(sizes)
        self.latest.update(row)
        self._closed, self._open = interval, Interval(end)
        return row

    def summary(
        self,
        identity: RunIdentity,
        exit_reason: str,
        now: float,
        startup_seconds: float | None,
        weights_sha256: str | None,
    ) -> dict[str, Any]:
        """The content of summary.json; null for a value that does not apply."""
        clock = self._clock
        return {
            **asdict(identity),
            "exit_reason": exit_reason,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "wall_seconds": self.elapsed(now),
            "startup_seconds": startup_seconds,
            "first_step_seconds": clock.first_step.seconds if clock.first_step else None,
            "steps_per_second": self.steps_per_second,
            "updates_per_second": clock.updates_per_second(self.updates),
            "learning_seconds": self.learning_seconds,
            "return_mean_100": self.return_mean_100,
            "return_mean": self.return_mean,
            "return_episodes": self.return_episodes,
            "eval_return_mean": self.eval_reward,
            "eval_episodes": self.eval_episodes,
            "eval_env_steps": self.eval_steps,
            "stop_at_return": self.threshold,
            "seconds_to_threshold": self.crossed.seconds if self.crossed else None,
            "steps_to_threshold": self.crossed.env_steps if self.crossed else None,
            "lag": {"mean": self.lag.mean, "max": self.lag.maximum} if self.lag.count else {"mean": None, "max": None},
            "lag_counts": self.lag_counts,
            "samples_per_insert": self.samples_per_insert,
            "roles": {role: total.shares() for role, total in self.roles.items()},
            "edges": {
                name: {"calls": edge.calls, "bytes": edge.bytes, "sent": edge.sent} for name, edge in self.edges.items()
            },
            "restarts": sum(self.restarts.values()),
            "dropped": self.dropped,
            **{name: self._counted(prefix) for name, prefix in _EVENTS.items()},
            "nodes": self.nodes,
            "weights_sha256": weights_sha256,
        }

    def state(self, now: float) -> dict[str, Any]:
        """Everything a resumed run needs to continue counting, as JSON values, without the open interval."""
        return {
            **self._clock.state(now),
            "threshold": self.threshold,
            "counters": dict(self.counters),
            "restarts": dict(self.restarts),
            "edges": {name: [edge.calls, edge.bytes, edge.waited, edge.sent] for name, edge in self.edges.items()},
            "roles": {role: asdict(total) for role, total in self.roles.items()},
            "cpu_seconds": dict(self.cpu_seconds),
            "lag": [self.lag.total, self.lag.count, self.lag.maximum] if self.lag.count else None,
            "lag_counts": self.lag_counts,
            "episodes": self.episodes,
            "window": [list(episode if episode.info else episode[:2]) for episode in self._window],
            "history": list(self.history),
            "eval": [self.eval_reward, self.eval_episodes, self.eval_steps],
            "crossed": self.crossed and list(self.crossed),
        }

    @classmethod
    def restore(
        cls, state: dict[str, Any], threshold: float | None, started: float, *, processes: bool = False
    ) -> Monitor:
        """Continue from `state`; run time at `started` is its value when the state was taken.

        A different threshold resets the moment of crossing. `processes`: see `RunClock.restore`.
        """
        monitor = cls(threshold)
        monitor._clock = RunClock.restore(state, started, processes=processes)
        monitor._open = Interval(state["elapsed"])
        monitor.counters.update(state["counters"])
        monitor.restarts.update(state["restarts"])
        monitor.edges.update({name: Traffic(*edge) for name, edge in state["edges"].items()})
        monitor.roles.update({role: RoleTotal(**total) for role, total in state.get("roles", {}).items()})
        monitor.cpu_seconds.update(state.get("cpu_seconds", {}))
        monitor.lag = Stat(*state["lag"]) if state["lag"] else Stat()
        monitor.lags.update({int(lag): steps for lag, steps in state.get("lag_counts", {}).items()})
        monitor.episodes = state["episodes"]
        monitor._window.extend(Episode(*episode) for episode in state["window"])
        monitor.history.extend(state["history"])
        monitor.eval_reward, monitor.eval_episodes, *steps = state["eval"]
        monitor.eval_steps = steps[0] if steps else None
        same = state["threshold"] == threshold
        monitor.crossed = Mark(*state["crossed"]) if same and state["crossed"] else None
        return monitor
