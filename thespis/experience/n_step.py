"""n-step transitions, read from stored steps when they are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thespis.core.types import Array, Transitions, Unroll
from thespis.experience.steps import GOES_ON, NOTHING, TERMINATED, Steps


@dataclass(frozen=True, slots=True)
class NStep:
    """From row t: R, the sum over k < m of discount^k r_{t+k}, and what is seen m = min(n, steps to the end) later.

    Bootstrapping there is worth discount^m, or 0 if the episode terminated on the way. So the last n - 1 steps of an
    episode have shorter windows, which end at its real last observation where it was truncated.
    """

    n: int
    discount: float
    nbytes: ClassVar = 0  # all it needs is in the steps

    def opened(self, steps: Steps, unroll: Unroll, numbers: Array) -> Array:
        """Rows of this unroll where a window starts: every step; `numbers`: `[T + 1, B]`, of its observations."""
        rows: Array = numbers[:-1][unroll.valid]
        return rows

    def sort(self, steps: Steps, pending: Array) -> tuple[Array, Array]:
        """The rows whose windows are complete, and those that wait for steps to come."""
        complete = self.complete(steps, pending)
        return pending[complete], pending[~complete]

    def complete(self, steps: Steps, numbers: Array) -> Array:
        """Which rows have all of their window by now: bool `[N]`.

        If values are kept, that of the observation after the window is part of it: the policy must have acted there.
        """
        over = np.zeros(len(numbers), np.bool_)
        known = np.ones(len(numbers), np.bool_)
        for _ in range(self.n):
            slots = numbers % steps.capacity
            over |= known & (steps.ends[slots] != GOES_ON)
            following = steps.following[slots]
            known &= following != NOTHING
            numbers = np.where(known, following, numbers)
        if steps.layout.values:
            known &= ~np.isnan(steps.values[numbers % steps.capacity, 0])
        return over | known

    def errors(self, steps: Steps, numbers: Array) -> Array:
        """|TD error| of complete windows as the policy valued them when it acted, float32 `[N]`; NaN where it did not.

        It did not value the last observation of a truncated episode if the environment was reset at once.
        """
        returns, discounts, following = self.read(steps, numbers)
        best = steps.values[following % steps.capacity, 1]
        future = np.where(discounts > 0.0, discounts * best, 0.0)
        errors: Array = np.abs(returns + future - steps.values[numbers % steps.capacity, 0])
        return errors

    def read(self, steps: Steps, numbers: Array) -> tuple[Array, Array, Array]:
        """Returns R, the discount of what follows (both float32 `[N]`), and the numbers of the rows that follow."""
        returns = np.zeros(len(numbers), np.float32)
        discounts = np.ones(len(numbers), np.float32)
        going = np.ones(len(numbers), np.bool_)
        for _ in range(self.n):
            slots = numbers % steps.capacity
            ends, following = steps.ends[slots], steps.following[slots]
            returns += going * discounts * steps.rewards[slots]
            discounts *= np.where(going, self.discount * (ends != TERMINATED), 1.0).astype(np.float32)
            # A terminated row need not be followed by anything; what stands there is worth 0.
            numbers = np.where(going & (following != NOTHING), following, numbers)
            going &= ends == GOES_ON
        return returns, discounts, numbers

    def batch(self, steps: Steps, keys: Array, weights: Array, inserted: int) -> Transitions:
        """The transitions from rows `keys`."""
        slots = keys % steps.capacity
        rewards, discounts, following = self.read(steps, keys)
        return Transitions(
            obs=steps.observations(keys),
            actions=steps.actions[slots],
            rewards=rewards,
            discounts=discounts,
            next_obs=steps.observations(following),
            versions=steps.versions[slots],
            weights=weights,
            keys=keys,
            taken=inserted,
        )

    def state(self) -> dict[str, Array]:
        """All it needs is in the steps."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None:
        """All it needs is in the steps."""
