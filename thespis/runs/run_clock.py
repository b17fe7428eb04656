"""RunClock: run time, the seconds during which a run was up, and the part of it in which the run learned.

It reads no clock; callers pass every time, virtual or real. A resumed run continues the run time of its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A moment of the run: its run time, and the environment steps until then."""

    seconds: float
    env_steps: int


class RunClock:
    """Run time from `started` on. Learning time is from the first update to the last, without start-ups in between."""

    def __init__(self, started: float = 0.0) -> None:
        self.first_step: Mark | None = None
        """The first report of environment steps."""
        self.last_step = 0.0
        """Run time of the last report of environment steps."""
        self._offset = -started
        self._first_update: Mark | None = None
        self._last_update: Mark | None = None
        self._first_updates = 0
        self._resumed: float | None = None
        self._pause = 0.0
        self._paused = 0.0
        self._starting: float | None = None
        """Run time of the resume, until its first step."""
        self._start_ups = 0.0

    def elapsed(self, now: float) -> float:
        """Run time at `now`."""
        return now + self._offset

    def time_spent(self, now: float) -> float:
        """Seconds since the first step, without the start-ups of resumed runs."""
        if self.first_step is None:
            return 0.0
        return self.elapsed(now) - self.first_step.seconds - self._start_up_seconds(now)

    def _start_up_seconds(self, now: float) -> float:
        return self._start_ups + (0.0 if self._starting is None else self.elapsed(now) - self._starting)

    @property
    def learning(self) -> bool:
        """Whether there was an update."""
        return self._first_update is not None

    @property
    def learning_seconds(self) -> float | None:
        """Run time from the first update to the last, without the start-up of a resumed run in between."""
        first, last = self._first_update, self._last_update
        if first is None or last is None or last.seconds - first.seconds - self._paused <= 0.0:
            return None
        return last.seconds - first.seconds - self._paused

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per second of `learning_seconds`, so without start-up and shutdown."""
        first, last, seconds = self._first_update, self._last_update, self.learning_seconds
        if first is None or last is None or seconds is None:
            return None
        return (last.env_steps - first.env_steps) / seconds

    def updates_per_second(self, updates: int) -> float | None:
        """Updates per second of `learning_seconds`; the first report of updates only starts that clock."""
        seconds = self.learning_seconds
        return None if seconds is None else (updates - self._first_updates) / seconds

    def add(self, counted: Mapping[str, int], env_steps: int, updates: int, now: float) -> Mark:
        """Add the counters of a report, and the totals that include them; return this moment."""
        here = Mark(self.elapsed(now), env_steps)
        if env_steps:
            self.first_step = self.first_step or here
        if counted.get("env_steps", 0):
            self.last_step = here.seconds
            self._start_ups, self._starting = self._start_up_seconds(now), None
            if self._resumed is not None:
                self._pause, self._resumed = here.seconds - self._resumed, None
        if counted.get("updates", 0):
            if self._first_update is None:
                self._first_update, self._first_updates = here, updates
            self._last_update = here
            self._paused, self._pause = self._paused + self._pause, 0.0
        return here

    def state(self, now: float) -> dict[str, Any]:
        """Everything a resumed run needs to continue, as JSON values."""
        return {
            "elapsed": self.elapsed(now),
            "first_step": self.first_step and list(self.first_step),
            "first_update": self._first_update and list(self._first_update),
            "last_update": self._last_update and list(self._last_update),
            "first_updates": self._first_updates,
            "paused": self._paused,
            "start_ups": self._start_up_seconds(now),
        }

    @classmethod
    def restore(cls, state: dict[str, Any], started: float, *, processes: bool) -> RunClock:
        """Continue from `state`; run time at `started` is its value when the state was taken.

        `processes`: the run must start processes before its first step, which does not count as learning time.
        """
        clock = cls()
        # One subtraction, so that a virtual clock continuing at the saved time gives an offset of exactly 0.
        clock._offset = state["elapsed"] - started
        clock.first_step = Mark(*state["first_step"]) if state.get("first_step") else None
        clock._first_update = Mark(*state["first_update"]) if state["first_update"] else None
        clock._last_update = Mark(*state["last_update"]) if state["last_update"] else None
        clock._first_updates = state.get("first_updates", 0)
        clock._paused = state.get("paused", 0.0)
        clock._start_ups = state.get("start_ups", 0.0)
        clock._starting = state["elapsed"] if processes and clock.first_step is not None else None
        clock._resumed = state["elapsed"] if processes and clock.learning else None
        clock.last_step = state["elapsed"]
        return clock
