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
    time_left: float | None = None
    """To the end of its seconds, if the run has only so many."""

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
            time_left=None if total_seconds is None else max(0.0, total_seconds - spent),
        )

    @property
    def steps_per_second(self) -> float | None:
        """Of the last row; the mean since the start until there is one."""
        mean = self.env_steps / self.elapsed if self.elapsed > 0.0 and self.env_steps else None
        return self.metrics.get("time/fps", mean)

    @property
    def seconds_left(self) -> float | None:
        """To `total_steps` at the present speed, or to the end of its time if that comes first."""
        speed = self.steps_per_second
        if self.total_steps is None or not speed:
            return self.time_left
        left = max(0, self.total_steps - self.env_steps) / speed
        return left if self.time_left is None else min(left, self.time_left)
