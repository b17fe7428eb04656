"""Step and time budget of a run, and the fraction used; schedules follow that fraction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Limits of a run: environment steps, seconds since the first step, or both; the first one reached ends the run."""

    steps: int | None
    seconds: float | None = None


class Progress:
    """The used fraction of a budget, as one role sees it. The role's clock starts at its first call of `fraction`."""

    def __init__(self, budget: Budget, now: Callable[[], float]) -> None:
        self._budget, self._now = budget, now
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds used so far. A restored role sets them; the clock then continues at the next call of `fraction`."""
        return self._before + (0.0 if self._since is None else self._now() - self._since)

    @seconds.setter
    def seconds(self, spent: float) -> None:
        """Set the seconds used before a restore, and stop the clock."""
        self._before, self._since = spent, None

    def fraction(self, steps: int) -> float:
        """Return the used fraction of the budget after `steps` environment steps; at least 1 when it is used up."""
        budget, spent = self._budget, 0.0
        if budget.steps is not None:
            spent = steps / budget.steps
        if budget.seconds is not None:
            if self._since is None:
                self._since = self._now()
            spent = max(spent, self.seconds / budget.seconds)
        return spent

    def exhausted(self, steps: int) -> bool:
        """Whether `steps` has reached the step limit."""
        return self._budget.steps is not None and steps >= self._budget.steps
