"""Sequences: windows over stored steps for recurrent networks, with the recurrent state at their start."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thespis.algorithms.updates.priorities import mixed_priorities
from thespis.algorithms.updates.rescaling import rescale, unscale
from thespis.core.types import Array, Inputs, SequenceBatch, State, Unroll, map_tree
from thespis.experience.step_storage import GOES_ON, NOTHING, TERMINATED, StepStorage


class SequenceShape(NamedTuple):
    """`burn_in` steps that only update the state, then `length` steps to learn from; one starts every `period` steps.

    `n`, `discount`: of the n-step targets. `eta`: weight of the largest error in a priority.
    """

    length: int
    burn_in: int
    period: int
    n: int
    discount: float
    eta: float


class Walk(NamedTuple):
    """Windows of W steps in storage. `rows`: `[W + 1, N]`, of observations. `valid`: `[W, N]`, steps taken.

    `opens`: `[N]`, the window starts its episode. `ended`: `[N]`, the episode ends in it.
    """

    rows: Array
    valid: Array
    opens: Array
    ended: Array


class SequenceWindow:
    """A sequence starts with every unroll and with every episode, and never leaves its episode.

        steps of an episode       0 1 2 3 4 5 6 7 8 9
        its first sequence    . . l l l l l l           no burn-in: no steps precede it
        unroll that starts at 3         b b l l l l l l     from the state stored at 3
        unroll that starts at 7                 b b l ...

    Observations stay in `StepStorage`, so overlapping sequences share them. Each unroll brings one state per
    environment, kept in a ring of its own; the state at an episode's start is zero and is not stored. A sequence that
    learns from no step beyond the previous one is left out.
    """

    def __init__(
        self, shape: SequenceShape, rows: int, shape_rewards: Callable[[Array], Array], stored: bool = True
    ) -> None:
        """`rows`: capacity of the storage. `stored`: start sequences from the stored state, or from zero."""
        self._shape, self._shape_rewards, self._stored = shape, shape_rewards, stored
        self._state_index = np.full(rows, NOTHING, np.int64)
        # Each state comes with `period` rows, so its row is overwritten before the state is.
        self._size = rows // shape.period + 1
        self._ring: list[Array] = []
        self._kept = self._taken = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._state_index.nbytes + sum(part.nbytes for part in self._ring)

    def opened(self, steps: StepStorage, unroll: Unroll, numbers: Array) -> Array:
        """Rows of this unroll at which a sequence starts; `numbers`: `[T + 1, B]`, of its observations."""
        first = unroll.inputs.first
        parts = [unroll.inputs.last_action[0], unroll.inputs.last_reward[0], *unroll.state]
        if not self._ring:
            self._ring = [np.zeros((self._size, *part.shape[1:]), part.dtype) for part in parts]
        self._taken += int(np.count_nonzero(unroll.valid))
        self._state_index[numbers % steps.capacity] = NOTHING
        starts = first[:-1] & unroll.valid
        self._state_index[numbers[:-1][starts] % steps.capacity] = _OPENS
        joins = ~first[0] & unroll.valid[0]
        self._state_index[numbers[0][joins] % steps.capacity] = self._keep([part[joins] for part in parts])
        starts[0] |= joins
        rows: Array = numbers[:-1][starts]
        return rows

    def sort(self, steps: StepStorage, pending: Array) -> tuple[Array, Array]:
        """The rows of complete and useful sequences, and the rows that wait for further steps."""
        walk, shape = self._walk(steps, pending), self._shape
        known = walk.valid[-1]
        if steps.layout.values:
            known = known & ~np.isnan(steps.values[walk.rows[-1] % steps.capacity, 0])
        complete = walk.ended | known
        # The sequence at most `period` steps earlier already learns from all steps of a shorter one.
        useful = walk.opens | (walk.valid.sum(0) > shape.length - shape.period)
        return pending[complete & useful], pending[~complete]

    def errors(self, steps: StepStorage, numbers: Array) -> Array:
        """Priorities by the policy's values at acting time: float32 `[N]`, NaN without a value."""
        walk = self._walk(steps, numbers)
        returns, discounts, ahead = self._targets(steps, walk)
        slots = walk.rows[self._shape.burn_in :] % steps.capacity
        best = np.take_along_axis(steps.values[slots, 1], ahead, 0)
        future = np.where(discounts > 0.0, discounts * unscale(best), 0.0)
        errors = np.abs(rescale(returns + future) - steps.values[slots[:-1], 0])
        return mixed_priorities(errors, walk.valid[self._shape.burn_in :] & ~np.isnan(errors), self._shape.eta)

    def batch(self, steps: StepStorage, keys: Array, weights: Array, inserted: int) -> SequenceBatch:
        """The sequences that start at rows `keys`."""
        walk = self._walk(steps, keys)
        slots = walk.rows % steps.capacity
        rewards, discounts, ahead = self._targets(steps, walk)
        return SequenceBatch(
            inputs=self._inputs(steps, walk),
            actions=steps.actions[slots[:-1]],
            rewards=rewards,
            discounts=discounts,
            ahead=ahead,
            valid=walk.valid,
            versions=steps.versions[slots[:-1]],
            state=self._states(keys % steps.capacity),
            weights=weights,
            keys=keys,
            env_steps_at_sample=self._taken,
        )

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""
        ring = {str(index): part[: self._kept] for index, part in enumerate(self._ring)}
        return {**ring, "places": self._state_index, "counts": np.array([self._kept, self._taken])}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self._state_index[:] = arrays["places"]
        self._kept, self._taken = (int(count) for count in arrays["counts"])
        self._ring = []
        while (part := arrays.get(str(len(self._ring)))) is not None:
            self._ring.append(np.zeros((self._size, *part.shape[1:]), part.dtype))
            self._ring[-1][: len(part)] = part

    def _keep(self, parts: list[Array]) -> Array:
        """Store the states of new starts in the ring; returns their indices."""
        indices: Array = (self._kept + np.arange(len(parts[0]))) % self._size
        for part, column in zip(parts, self._ring, strict=True):
            column[indices] = part
        self._kept += len(indices)
        return indices

    def _states(self, slots: Array) -> State:
        indices = self._state_index[slots]
        known = (indices >= 0) if self._stored else np.zeros(len(indices), np.bool_)
        return tuple(_masked(column[indices], known) for column in self._ring[2:])

    def _walk(self, steps: StepStorage, numbers: Array) -> Walk:
        """Follow the links from `numbers`; past the end of an episode the last row repeats."""
        opens = self._state_index[numbers % steps.capacity] == _OPENS
        width = self._shape.burn_in + self._shape.length
        rows, valid = np.empty((width + 1, len(numbers)), np.int64), np.empty((width, len(numbers)), np.bool_)
        begins = np.where(opens, self._shape.burn_in, 0)
        going, ended = np.ones((2, len(numbers)), np.bool_)
        ended[:] = False
        for t in range(width):
            slots = numbers % steps.capacity
            over, following = steps.ends[slots] != GOES_ON, steps.following[slots]
            there = (t >= begins) & going
            rows[t] = numbers
            valid[t] = there & (over | (following != NOTHING))
            numbers = np.where(valid[t] & (following != NOTHING), following, numbers)
            going &= ~there | (valid[t] & ~over)
            ended |= valid[t] & over
        rows[width] = numbers
        return Walk(rows, valid, opens, ended)

    def _targets(self, steps: StepStorage, walk: Walk) -> tuple[Array, Array, Array]:
        slots = walk.rows[self._shape.burn_in : -1] % steps.capacity
        rewards = self._shape_rewards(steps.rewards[slots])
        return n_steps(
            rewards, steps.ends[slots], walk.valid[self._shape.burn_in :], self._shape.n, self._shape.discount
        )

    def _inputs(self, steps: StepStorage, walk: Walk) -> Inputs:
        slots, number = walk.rows % steps.capacity, walk.rows.shape[1]
        last_action = np.concatenate([steps.actions[slots[:1]], steps.actions[slots[:-1]]])
        last_reward = np.concatenate([steps.rewards[slots[:1]], steps.rewards[slots[:-1]]])
        first = np.zeros(walk.rows.shape, np.bool_)
        first[self._shape.burn_in, walk.opens] = True
        # The action and reward before the first observation are in no row of the window.
        indices = self._state_index[slots[0]]
        last_action[0], last_reward[0] = (_masked(column[indices], ~walk.opens) for column in self._ring[:2])
        last_action[first], last_reward[first] = 0, 0.0
        flat = steps.observations(walk.rows.ravel())
        obs = map_tree(lambda leaf: leaf.reshape(-1, number, *leaf.shape[1:]), flat)
        return Inputs(obs, first, last_action, last_reward)


def n_steps(rewards: Array, ends: Array, valid: Array, n: int, discount: float) -> tuple[Array, Array, Array]:
    """For each of `[T, N]` steps: R, the bootstrap factor, and the index of the bootstrap observation in `[T + 1, N]`.

    As in `NStep`, but within the T steps: the last n - 1 bootstrap from the last observation.
    """
    steps = len(rewards)
    returns, discounts = np.zeros_like(rewards, np.float32), np.ones_like(rewards, np.float32)
    ahead: Array = np.tile(np.arange(steps)[:, None], (1, rewards.shape[1]))
    going = valid.copy()
    for k in range(min(n, steps)):
        here, there = slice(0, steps - k), slice(k, steps)
        going[steps - k :] = False
        going[here] &= valid[there]
        returns[here] += going[here] * discounts[here] * rewards[there]
        factors = np.where(going[here], discount * (ends[there] != TERMINATED), 1.0)
        discounts[here] *= factors.astype(np.float32)
        ahead += going
        going[here] &= ends[there] == GOES_ON
    return returns, discounts, ahead


def _masked(rows: Array, keep: Array) -> Array:
    """Rows where `keep`, zeros elsewhere."""
    masked: Array = np.where(keep.reshape(-1, *(1,) * (rows.ndim - 1)), rows, np.zeros((), rows.dtype))
    return masked


_OPENS = -2
"""Index of rows that start an episode: their state is zero, and no step precedes them."""
