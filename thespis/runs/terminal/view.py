"""View: the displayed state of a run at one moment. The panel, plain lines and SVG all render it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from thespis.runs.interval import RoleShare
from thespis.runs.monitor import Monitor, RunIdentity


class EvaluationView(NamedTuple):
    """The newest evaluation: mean return of greedy episodes, and the environment steps until then."""

    return_mean: float
    episodes: int
    env_steps: int | None


class RealTime(NamedTuple):
    """Real duration of a simulated run: seconds so far, and real seconds per virtual second."""

    seconds: float
    pace: float | None


@dataclass(frozen=True)
class View:
    """The state of a run at one moment. `metrics`: the newest value of each; `history`: mean return over time."""

    identity: RunIdentity
    elapsed: float
    env_steps: int
    total_steps: int | None
    updates: int
    episodes: int
    return_mean: float | None
    threshold: float | None
    samples_per_insert: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    history: tuple[float, ...] = ()
    roles: dict[str, RoleShare] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    time_spent: float = 0.0
    """Seconds since the first step."""
    total_seconds: float | None = None
    """The run's time limit in seconds, if any."""
    return_episodes: int = 0
    """Training episodes in `return_mean`; at most 100."""
    reached: bool = False
    """Whether the mean of 100 training episodes has reached the threshold."""
    evaluation: EvaluationView | None = None
    real: RealTime | None = None
    """None if the run's own time is real."""

    @classmethod
    def of(
        cls,
        monitor: Monitor,
        identity: RunIdentity,
        total_steps: int | None,
        now: float,
        total_seconds: float | None = None,
        real: RealTime | None = None,
    ) -> View:
        """Totals as of `now`; rates and shares over the last finished interval."""
        greedy = monitor.eval_reward
        return cls(
            identity=identity,
            elapsed=monitor.elapsed(now),
            env_steps=monitor.env_steps,
            total_steps=total_steps,
            updates=monitor.updates,
            episodes=monitor.episodes,
            return_mean=monitor.return_mean,
            threshold=monitor.threshold,
            samples_per_insert=monitor.samples_per_insert,
            metrics=dict(monitor.latest),
            history=tuple(monitor.history),
            roles=monitor.shown.roles(),
            restarts=dict(monitor.restarts),
            dropped=monitor.dropped,
            nodes=monitor.nodes,
            time_spent=monitor.time_spent(now),
            total_seconds=total_seconds,
            return_episodes=monitor.return_episodes,
            reached=monitor.reached,
            evaluation=None if greedy is None else EvaluationView(greedy, monitor.eval_episodes, monitor.eval_steps),
            real=real,
        )

    @property
    def steps_per_second(self) -> float | None:
        """Speed in the last row of metrics."""
        return self.metrics.get("time/fps")

    @property
    def seconds_left(self) -> float | None:
        """Real time until `total_steps` at the current speed, or until the time limit if that comes first."""
        speed, left = self.steps_per_second, []
        pace = 1.0 if self.real is None else self.real.pace
        if pace is None:
            return None
        if self.total_steps is not None and speed:
            left.append(max(0, self.total_steps - self.env_steps) / speed)
        if self.total_seconds is not None:
            left.append(max(0.0, self.total_seconds - self.time_spent))
        return min(left) * pace if left else None

    @property
    def done(self) -> float | None:
        """Fraction of the run that is over: the greater of the fractions of steps and of time."""
        done = [] if self.total_steps is None else [self.env_steps / self.total_steps]
        if self.total_seconds is not None:
            done.append(self.time_spent / self.total_seconds)
        return min(1.0, max(done)) if done else None
