"""n-step transitions, read from stored steps when they are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thespis.core.types import Array, TransitionBatch, Unroll
from thespis.experience.step_storage import GOES_ON, NOTHING, TERMINATED, StepStorage


@dataclass(frozen=True, slots=True)
class NStep:
    """From row t: the return R = sum over k < m of discount^k r_{t+k}, and the observation m steps later.

    m = min(n, steps to the end of the episode). The bootstrap factor is discount^m, or 0 if the episode terminated
    within the window. So the last n - 1 steps of an episode have shorter windows; after a truncation these end at the
    episode's last observation.
    """

    n: int
    discount: float
    nbytes: ClassVar = 0  # windows are computed from the steps

    def opened(self, steps: StepStorage, unroll: Unroll, numbers: Array) -> Array:
        """Rows of this unroll at which a window starts: every step. `numbers`: `[T + 1, B]`, of its observations."""
        rows: Array = numbers[:-1][unroll.valid]
        return rows

    def sort(self, steps: StepStorage, pending: Array) -> tuple[Array, Array]:
        """The rows with complete windows, and the rows that wait for further steps."""
        complete = self.complete(steps, pending)
        return pending[complete], pending[~complete]

    def complete(self, steps: StepStorage, numbers: Array) -> Array:
        """Return which rows have complete windows: bool `[N]`.

        If values are stored, a window also needs the value of the observation after it, so the policy must have acted
        on that observation.
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

    def errors(self, steps: StepStorage, numbers: Array) -> Array:
        """|TD error| of complete windows by the policy's values at acting time, float32 `[N]`; NaN without a value.

        The last observation of a truncated episode has no value if the environment was reset at once.
        """
        returns, discounts, following = self.read(steps, numbers)
        best = steps.values[following % steps.capacity, 1]
        future = np.where(discounts > 0.0, discounts * best, 0.0)
        errors: Array = np.abs(returns + future - steps.values[numbers % steps.capacity, 0])
        return errors

    def read(self, steps: StepStorage, numbers: Array) -> tuple[Array, Array, Array]:
        """Returns R, the bootstrap factor (both float32 `[N]`), and the numbers of the rows to bootstrap from."""
        returns = np.zeros(len(numbers), np.float32)
        discounts = np.ones(len(numbers), np.float32)
        going = np.ones(len(numbers), np.bool_)
        for _ in range(self.n):
            slots = numbers % steps.capacity
            ends, following = steps.ends[slots], steps.following[slots]
            returns += going * discounts * steps.rewards[slots]
            discounts *= np.where(going, self.discount * (ends != TERMINATED), 1.0).astype(np.float32)
            # A terminated row may have no following row; its bootstrap factor is 0.
            numbers = np.where(going & (following != NOTHING), following, numbers)
            going &= ends == GOES_ON
        return returns, discounts, numbers

    def batch(self, steps: StepStorage, keys: Array, weights: Array, inserted: int) -> TransitionBatch:
        """The transitions that start at rows `keys`."""
        slots = keys % steps.capacity
        rewards, discounts, following = self.read(steps, keys)
        return TransitionBatch(
            obs=steps.observations(keys),
            actions=steps.actions[slots],
            rewards=rewards,
            discounts=discounts,
            next_obs=steps.observations(following),
            versions=steps.versions[slots],
            weights=weights,
            keys=keys,
            env_steps_at_sample=inserted,
        )

    def state(self) -> dict[str, Array]:
        """Empty: windows are computed from the steps."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Do nothing: windows are computed from the steps."""
