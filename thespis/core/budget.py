"""What a run may take, and how much of it is spent: whatever changes in the course of a run follows that share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Environment steps, seconds from the first of them, or both: then it is spent with what is spent first."""

    steps: int | None
    seconds: float | None = None


class Spending:
    """How much of a budget is spent, as one role sees it: its seconds begin when it first asks.

    `seconds`: those spent until now. Whoever is restored sets it; its clock then goes on at the next question.
    """

    def __init__(self, budget: Budget, now: Callable[[], float]) -> None:
        self._budget, self._now = budget, now
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else self._now() - self._since)

    @seconds.setter
    def seconds(self, spent: float) -> None:
        self._before, self._since = spent, None

    def share(self, steps: int) -> float:
        """What is spent with `steps` taken until now, of 1."""
        budget, spent = self._budget, 0.0
        if budget.steps is not None:
            spent = steps / budget.steps
        if budget.seconds is not None:
            if self._since is None:
                self._since = self._now()
            spent = max(spent, self.seconds / budget.seconds)
        return spent

    def last(self, steps: int) -> bool:
        """Whether no more steps may be taken than these."""
        return self._budget.steps is not None and steps >= self._budget.steps
