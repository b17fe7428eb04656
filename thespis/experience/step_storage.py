"""StepStorage: the steps of a replay. Each observation is stored once and shared by all its windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from thespis.core.types import Array, Tree, Unroll, empty_tree, map_tree

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
NOTHING = -1


@dataclass(frozen=True)
class StepLayout:
    """The contents of one row. `frame`: the newest frame of an observation, `action`: one action, both as empty arrays.

    `stack`: frames per observation; 1 if an observation is not a stack, and `frame` is then a whole observation.
    `values`: store the policy's action values.
    """

    frame: Tree
    action: Array
    stack: int
    values: bool = False

    @classmethod
    def of(cls, obs: Tree, action: Array, values: bool = False) -> StepLayout:
        """The layout for such observations and actions. Byte images with channels first count as stacks."""
        if not isinstance(obs, dict) and obs.dtype == np.uint8 and obs.ndim == 3 and 1 < obs.shape[0] < obs.shape[2]:
            return cls(np.empty(obs.shape[1:], obs.dtype), action, obs.shape[0], values)
        return cls(obs, action, 1, values)

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        frames = self.frame.values() if isinstance(self.frame, dict) else (self.frame,)
        links, values = 16 if self.stack > 1 else 8, 8 if self.values else 0
        return sum(frame.nbytes for frame in frames) + self.action.nbytes + 4 + 1 + 8 + links + values


class StepStorage:
    """A ring of rows, one per step; the oldest row is overwritten first.

    A row has a number that is never reused, and lies in slot `number % capacity`. It holds an observation, the action,
    its result, and the number of the following row. Numbers rise along these links, so a stored row's successors are
    stored too. Unrolls of one stream are joined: the last observation of one is the first of the next, and is stored
    once.

        unroll k     row 0 1 2 ... T          T waits for its action
        unroll k+1                 T T+1 ...

    The last observation of a truncated episode has a row of its own. Of a stack of frames only the newest is stored;
    the older frames are those of the rows before. At the start of an episode they differ, and get rows of their own
    too, so observations are returned exactly as inserted.
    """

    def __init__(self, layout: StepLayout, capacity: int) -> None:
        self.layout, self.capacity = layout, capacity
        self.written = 0
        self.frames = _full((capacity,), layout.frame)
        self.actions = np.zeros((capacity, *layout.action.shape), layout.action.dtype)
        self.rewards = np.zeros(capacity, np.float32)
        self.ends = np.zeros(capacity, np.uint8)
        self.versions = np.zeros(capacity, np.int64)
        self.following = np.full(capacity, NOTHING, np.int64)
        self.values = np.full((capacity if layout.values else 0, 2), np.nan, np.float32)
        self._before = np.full(capacity if layout.stack > 1 else 0, NOTHING, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(column.nbytes for column in self._columns().values())

    @property
    def oldest(self) -> int:
        """The lowest number that is still stored."""
        return max(0, self.written - self.capacity)

    def number(self, slots: Array) -> Array:
        """The numbers of the rows in `slots`."""
        return self.oldest + (slots - self.oldest) % self.capacity

    def opens(self, unroll: Unroll) -> Array:
        """Where the older frames of a stack are not those of the row before: bool `[T + 1, B]`."""
        opens: Array = unroll.inputs.first.copy()
        if self.layout.stack > 1:
            obs: Any = np.ascontiguousarray(unroll.inputs.obs)
            flat = obs.reshape(*opens.shape, -1)
            # Eight bytes at a time if frames allow it: comparing pixels would take most of an insert.
            wide = flat.view(np.uint64) if obs[0, 0, 0].nbytes % 8 == 0 else flat
            frame = wide.shape[-1] // self.layout.stack
            opens[1:] |= (wide[1:, :, :-frame] != wide[:-1, :, frame:]).any(-1)
        return opens

    def most(self, unroll: Unroll, opens: Array | None = None) -> int:
        """Upper bound on the rows that writing `unroll` overwrites; `opens`: as in `write`."""
        opens = self.opens(unroll) if opens is None else opens
        steps, envs = (int(size) for size in unroll.rewards.shape)
        opened = int(np.count_nonzero(opens[1:])) + envs
        finals = len(unroll.final_index)
        return (steps + 1) * envs + finals + (opened + finals) * (self.layout.stack - 1)

    def lost(self, rows: int) -> Array:
        """Slots whose observations will be incomplete after `rows` more rows are written."""
        numbers = np.arange(self.oldest, max(0, self.written + rows - self.capacity))
        slots = [numbers % self.capacity]
        for _ in range(self.layout.stack - 1):
            numbers = self.following[slots[-1]]
            slots.append(numbers[numbers != NOTHING] % self.capacity)
        return np.concatenate(slots)

    def whole(self, numbers: Array, rows: int) -> Array:
        """Which rows will still have all their frames after `rows` more rows are written: bool `[N]`."""
        bound = self.written + rows - self.capacity
        there = numbers >= bound
        for _ in range(self.layout.stack - 1):
            numbers = self._before[numbers % self.capacity]
            there &= numbers >= bound
        return there

    def write(self, unroll: Unroll, heads: Array | None, rewards: Array, opens: Array | None = None) -> Array:
        """Write T steps of B environments; returns the row numbers of all observations, `[T + 1, B]`.

        `heads`: numbers `[B]` of the rows that this unroll continues; None for a new stream. `rewards`: `[T, B]`,
        shaped for storage. `opens`: the result of `opens`, if known.
        """
        steps, envs = unroll.rewards.shape
        numbers = np.empty((steps + 1, envs), np.int64)
        opens = self.opens(unroll) if opens is None else opens
        new = 0 if heads is None else 1
        if heads is None:
            opens[0] = True
        else:
            numbers[0], opens[0] = heads, False
        stacked = self.layout.stack - 1
        base = self.written + stacked * int(np.count_nonzero(opens))
        numbers[new:] = base + np.arange((steps + 1 - new) * envs).reshape(-1, envs)
        if stacked:
            self._put_stacks(unroll, numbers, opens, new)
        else:
            self._put(numbers[new:].ravel(), map_tree(lambda leaf: _rows(leaf[new:]), unroll.inputs.obs))
        self.written = base + (steps + 1 - new) * envs
        self._put_steps(unroll, numbers, rewards)
        if len(unroll.final_index):
            self._put_finals(unroll, numbers)
        return numbers

    def observations(self, numbers: Array) -> Tree:
        """The observations of rows, `[N, ...]`."""
        slots = numbers % self.capacity
        if self.layout.stack == 1:
            tree: Tree = map_tree(lambda column: column[slots], self.frames)
            return tree
        chain = [slots]
        for _ in range(self.layout.stack - 1):
            chain.append(self._before[chain[-1]] % self.capacity)
        stacks: Tree = map_tree(lambda column: column[np.stack(chain[::-1], 1)], self.frames)
        return stacks

    def state(self) -> dict[str, Array]:
        """All columns, up to the last written row."""
        end = min(self.written, self.capacity)
        return {name: column[:end] for name, column in self._columns().items()}

    def restore(self, arrays: dict[str, Array], written: int) -> None:
        """Load what `state` returned."""
        end = min(written, self.capacity)
        for name, column in self._columns().items():
            column[:end] = arrays[name]
        self.written = written

    def _columns(self) -> dict[str, Array]:
        frames = self.frames if isinstance(self.frames, dict) else {"": self.frames}
        columns = {f"frames/{key}": column for key, column in frames.items()}
        for name in ("actions", "rewards", "ends", "versions", "following"):
            columns[name] = getattr(self, name)
        if self.layout.values:
            columns["values"] = self.values
        return {**columns, "before": self._before} if self.layout.stack > 1 else columns

    def _put(self, numbers: Array, frames: Tree) -> None:
        slots = numbers % self.capacity

        def put(column: Array, values: Array) -> None:
            column[slots] = values

        map_tree(put, self.frames, frames)
        self.following[slots] = NOTHING
        self.ends[slots] = GOES_ON
        if self.layout.values:
            self.values[slots] = np.nan

    def _put_stacks(self, unroll: Unroll, numbers: Array, opens: Array, new: int) -> None:
        obs: Any = unroll.inputs.obs
        self._put(numbers[new:].ravel(), _rows(obs[new:, :, -1]))
        self._before[numbers[1:] % self.capacity] = numbers[:-1]
        opened = numbers[opens]
        self._put_older(obs[opens][:, :-1], opened, self.written)

    def _put_older(self, frames: Array, rows: Array, base: int) -> None:
        """Write the older frames `[N, stack - 1, ...]` of stacks with newest frames at `rows`, from `base` on."""
        chain = base + np.arange(frames.shape[0] * frames.shape[1]).reshape(frames.shape[:2])
        self._put(chain.ravel(), _rows(frames))
        before = np.concatenate([np.full((len(rows), 1), NOTHING), chain], 1)
        after = np.concatenate([chain, rows[:, None]], 1)
        self._before[after % self.capacity] = before
        self.following[chain % self.capacity] = after[:, 1:]

    def _put_steps(self, unroll: Unroll, numbers: Array, rewards: Array) -> None:
        slots = numbers[:-1] % self.capacity
        self.actions[slots] = unroll.actions
        self.rewards[slots] = rewards
        if self.layout.values:
            self.values[slots] = unroll.q
        self.versions[slots] = unroll.versions
        self.ends[slots] = np.where(unroll.terminated, TERMINATED, np.where(unroll.truncated, TRUNCATED, GOES_ON))
        self.following[slots] = np.where(unroll.inputs.first[1:], NOTHING, numbers[1:])

    def _put_finals(self, unroll: Unroll, numbers: Array) -> None:
        times, envs = unroll.final_index.T
        rows = numbers[times, envs]
        obs: Any = unroll.final_obs
        # Numbers rise along the links of a stack as well: its older frames come first.
        base, stacked = self.written, self.layout.stack - 1
        finals = base + len(rows) * stacked + np.arange(len(rows))
        self.following[rows % self.capacity] = finals
        self._put(finals, obs[:, -1] if stacked else obs)
        if stacked:
            self._put_older(obs[:, :-1], finals, base)
        self.written = base + len(rows) * self.layout.stack


def _rows(leaf: Array) -> Array:
    """Flatten time and environment to one axis."""
    return leaf.reshape(-1, *leaf.shape[2:])


def _full(leading: tuple[int, ...], like: Tree) -> Tree:
    """Zeros in committed memory, so that a lack of memory shows now, not hours later."""
    tree = empty_tree(leading, like)
    map_tree(lambda leaf: leaf.fill(0), tree)
    return tree
