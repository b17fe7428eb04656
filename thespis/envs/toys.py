"""Small environments with known answers, for examples and for testing the whole system.

Registered as `thespis/Memory-v0`, `thespis/Recall-v0`, `thespis/Reversal-v0`, `thespis/Lock-v0`, `thespis/Chain-v0`,
`thespis/Faulty-v0`, `thespis/Sleep-v0`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from thespis.core.types import Array

Fault = Literal["raise", "hang", "nan_reward", "nan_obs", "shape"]
Result = tuple[Array, float, bool, bool, dict[str, Any]]


class Memory(gym.Env[Array, np.int64]):
    """Shows a cue once and asks for it `length - 1` steps later; without memory the mean return is 0, with it 1.

    `obs`: float32 `[2]`, the cue (+1 or -1 at the first step, then 0) and the time from 0 to 1.
    The last action must be 1 for cue +1 and 0 for cue -1: reward +1 if it is, -1 if not.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 2:
            raise ValueError(f"length is {length}, but the cue and the question need a step each, so at least 2")
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._time, self._cue = length, 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._cue = 1 if self.np_random.random() < 0.5 else -1
        return self._observe(float(self._cue)), {}

    def step(self, action: np.int64) -> Result:
        self._time += 1
        over = self._time == self._length
        correct = int(action) == (self._cue + 1) // 2
        return self._observe(0.0), (1.0 if correct else -1.0) if over else 0.0, over, False, {}

    def _observe(self, cue: float) -> Array:
        return np.array([cue, min(1.0, self._time / (self._length - 1))], np.float32)


class Recall(gym.Env[Array, np.int64]):
    """Shows one of two cues at the first step and asks for it at each later one with probability `asks`.

    `obs`: float32 `[4]`, the cue (one-hot at the first step, then 0), whether this step is a question, and 1. The
    answer is the number of the cue: reward +1 if it is right, -1 if not; what is done at other steps pays nothing. So
    an agent without memory gets 0 on average, and one that remembers for k steps is right in the first k.

    `turn`: from this step on the answer is the number of the other cue, and the last part of `obs` is 0. That can only
    be learned from steps after the turn by who still knows the cue there. `thespis/Reversal-v0` turns halfway.
    """

    def __init__(self, length: int = 40, asks: float = 0.25, turn: int | None = None) -> None:
        if length < 2 or not 0.0 < asks <= 1.0:
            raise ValueError(f"length {length} and asks {asks}: give at least 2 steps, and a chance above 0, at most 1")
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._asks, self._turn = length, asks, length + 1 if turn is None else turn
        self._time, self._cue, self._asked = 0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._asked = 0, False
        self._cue = int(self.np_random.random() < 0.5)
        return self._observe(), {}

    def step(self, action: np.int64) -> Result:
        right = int(action) == (self._cue if self._time < self._turn else 1 - self._cue)
        reward = (1.0 if right else -1.0) if self._asked else 0.0
        self._time += 1
        self._asked = bool(self.np_random.random() < self._asks)
        return self._observe(), reward, self._time == self._length, False, {}

    def _observe(self) -> Array:
        obs = np.array([0.0, 0.0, float(self._asked), float(self._time < self._turn)], np.float32)
        if self._time == 0:
            obs[self._cue] = 1.0
        return obs


class Lock(gym.Env[Array, np.int64]):
    """A combination lock: reward 1 if all `length` digits of its code are dialled in order, else nothing, ever.

    `obs`: float32 `[choices + 1]`, the last digit dialled (one-hot, 0 at first) and 1. How many were dialled is not
    shown, so an agent has to count; a wrong digit is not told, so it is found by chance once in choices^length
    episodes. The code is the same in every episode and for every seed.
    """

    def __init__(self, length: int = 10, choices: int = 4) -> None:
        if length < 1 or choices < 2:
            raise ValueError(f"length {length} and choices {choices}: give at least 1 digit, and 2 values for each")
        self.observation_space = Box(0.0, 1.0, (choices + 1,), np.float32)
        self.action_space = Discrete(choices)
        self.code: list[int] = np.random.default_rng(123).integers(0, choices, length).tolist()
        self._dialled: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._dialled = []
        return self._observe(), {}

    def step(self, action: np.int64) -> Result:
        self._dialled.append(int(action))
        over = len(self._dialled) == len(self.code)
        return self._observe(), float(self._dialled == self.code), over, False, {}

    def _observe(self) -> Array:
        obs = np.zeros(self.observation_space.shape or (), np.float32)
        obs[-1] = 1.0
        if self._dialled:
            obs[self._dialled[-1]] = 1.0
        return obs


def open_lock() -> Callable[[Array], int]:
    """A scripted policy for `thespis/Lock-v0`: called where an episode opens, it returns what acts until its end."""
    digits = iter(Lock().code)
    return lambda obs: next(digits)


class Chain(gym.Env[Array, np.int64]):
    """Counts its steps whatever the action: step t pays t, so the return is `length * (length + 1) / 2`.

    `obs`: float32 `[2]`, the number of resets before this episode and the steps taken in it, so each observation tells
    where it came from. `truncate`: whether the episode is cut off at `length` or ends there.
    """

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.observation_space = Box(0.0, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._truncate = length, truncate
        self._episode, self._time = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> Result:
        self._time += 1
        over = self._time >= self._length
        return self._observe(), float(self._time), over and not self._truncate, over and self._truncate, {}

    def _observe(self) -> Array:
        return np.array([self._episode, self._time], np.float32)


class Faulty(Chain):
    """A chain that fails at step `at_step` of an episode, in the way `fault` says.

    With `once_file` the fault happens to whoever creates that file, and to nobody after: a restarted actor runs well.
    """

    def __init__(
        self, fault: Fault = "raise", at_step: int = 3, once_file: str | None = None, length: int = 10
    ) -> None:
        super().__init__(length)
        self._fault, self._at_step, self._once_file = fault, at_step, once_file

    def step(self, action: np.int64) -> Result:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._time == self._at_step and self._due():
            if self._fault == "raise":
                raise RuntimeError(f"injected fault at step {self._time}")
            if self._fault == "hang":
                while True:
                    time.sleep(3600.0)
            if self._fault == "nan_reward":
                reward = float("nan")
            if self._fault == "nan_obs":
                obs[1] = np.nan
            if self._fault == "shape":
                obs = np.append(obs, obs[-1])
        return obs, reward, terminated, truncated, info

    def _due(self) -> bool:
        if self._once_file is None:
            return True
        try:
            os.close(os.open(self._once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


class Sleep(Chain):
    """A chain whose every step sleeps `seconds`, like an environment that waits for a simulator elsewhere."""

    def __init__(self, seconds: float = 0.01, length: int = 100) -> None:
        super().__init__(length)
        self._seconds = seconds

    def step(self, action: np.int64) -> Result:
        time.sleep(self._seconds)
        return super().step(action)
