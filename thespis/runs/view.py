"""What is shown of a run at one moment, as data: the panel, the plain lines and the picture all draw this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from thespis.runs.interval import RoleShare
from thespis.runs.monitor import Identity, Monitor


class Evaluation(NamedTuple):
    """The newest evaluation: mean return of greedy episodes, and the steps that the run had taken by then."""

    return_mean: float
    episodes: int
    env_steps: int | None


class RealTime(NamedTuple):
    """How long a simulated run really takes: seconds so far, and seconds per virtual second."""

    seconds: float
    pace: float | None


@dataclass(frozen=True)
class View:
    """A moment of a run. `metrics` holds the newest value of each; `history` the mean return over time."""

    identity: Identity
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
    """How many of them the run has, if it has only so many."""
    return_episodes: int = 0
    """Training episodes that `return_mean` is taken over; 100 once there are so many."""
    reached: bool = False
    """Whether the mean of 100 training episodes has been at the threshold."""
    evaluation: Evaluation | None = None
    real: RealTime | None = None
    """None where the run's own time is real."""

    @classmethod
    def of(
        cls,
        monitor: Monitor,
        identity: Identity,
        total_steps: int | None,
        now: float,
        total_seconds: float | None = None,
        real: RealTime | None = None,
    ) -> View:
        """Totals as of `now`; rates and shares over the last finished interval."""
        first, greedy = monitor.first_step, monitor.eval_reward
        spent = monitor.elapsed(now) - first.seconds if first is not None else 0.0
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
            time_spent=spent,
            total_seconds=total_seconds,
            return_episodes=monitor.return_episodes,
            reached=monitor.reached,
            evaluation=None if greedy is None else Evaluation(greedy, monitor.eval_episodes, monitor.eval_steps),
            real=real,
        )

    @property
    def steps_per_second(self) -> float | None:
        """Of the last row."""
        return self.metrics.get("time/fps")

    @property
    def seconds_left(self) -> float | None:
        """Real time to `total_steps` at the present speed, or to the end of its time if that comes first."""
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
        """The share of the run that is over: of its steps or of its time, whichever is more."""
        done = [] if self.total_steps is None else [self.env_steps / self.total_steps]
        if self.total_seconds is not None:
            done.append(self.time_spent / self.total_seconds)
        return min(1.0, max(done)) if done else None
