"""What is shown of a run at one moment, as data: the panel, the plain lines and the picture all draw this."""

from __future__ import annotations

from dataclasses import dataclass, field

from thespis.runs.interval import RoleShare
from thespis.runs.monitor import Identity, Monitor


@dataclass(frozen=True)
class View:
    """A moment of a run. `metrics` is the latest row; `history` the mean return over time."""

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

    @classmethod
    def of(
        cls,
        monitor: Monitor,
        identity: Identity,
        total_steps: int | None,
        now: float,
        total_seconds: float | None = None,
    ) -> View:
        """Totals as of `now`; rates and shares over the last finished interval."""
        first = monitor.first_step
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
            metrics=monitor.row_values,
            history=tuple(monitor.history),
            roles=monitor.shown.roles(),
            restarts=dict(monitor.restarts),
            dropped=monitor.dropped,
            nodes=monitor.nodes,
            time_spent=spent,
            total_seconds=total_seconds,
        )

    @property
    def steps_per_second(self) -> float | None:
        """Of the last row; the mean since the start until there is one."""
        mean = self.env_steps / self.elapsed if self.elapsed > 0.0 and self.env_steps else None
        return self.metrics.get("time/fps", mean)

    @property
    def seconds_left(self) -> float | None:
        """To `total_steps` at the present speed, or to the end of its time if that comes first."""
        speed, left = self.steps_per_second, []
        if self.total_steps is not None and speed:
            left.append(max(0, self.total_steps - self.env_steps) / speed)
        if self.total_seconds is not None:
            left.append(max(0.0, self.total_seconds - self.time_spent))
        return min(left, default=None)

    @property
    def done(self) -> float | None:
        """The share of the run that is over: of its steps or of its time, whichever is more."""
        done = [] if self.total_steps is None else [self.env_steps / self.total_steps]
        if self.total_seconds is not None:
            done.append(self.time_spent / self.total_seconds)
        return min(1.0, max(done)) if done else None
