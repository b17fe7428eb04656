"""Small environments with known optimal returns, for examples and for tests of the whole system.

Registered as `thespis/Memory-v0`, `thespis/Recall-v0`, `thespis/Reversal-v0`, `thespis/Lock-v0`, `thespis/Chain-v0`,
`thespis/Faulty-v0`, `thespis/Sleep-v0`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from thespis.core.types import Array

FaultKind = Literal["raise", "hang", "nan_reward", "nan_obs", "shape", "exit"]
StepResult = tuple[Array, float, bool, bool, dict[str, Any]]


class Memory(gym.Env[Array, np.int64]):
    """Shows a cue at the first step and asks for it `length - 1` steps later.

    The mean return is 0 without memory and 1 with memory.

    `obs`: float32 `[2]`, the cue (+1 or -1 at the first step, then 0) and the time from 0 to 1.
    The correct last action is 1 for cue +1 and 0 for cue -1. It earns +1, any other last action -1.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 2:
            raise ValueError(f"length is {length}, but the cue and the question need a step each, so at least 2")
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._time, self._cue = length, 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self._time = 0
        self._cue = 1 if self.np_random.random() < 0.5 else -1
        return self._observe(float(self._cue)), {}

    def step(self, action: np.int64) -> StepResult:
        """Advance the time; the last step rewards the answer."""
        self._time += 1
        over = self._time == self._length
        correct = int(action) == (self._cue + 1) // 2
        return self._observe(0.0), (1.0 if correct else -1.0) if over else 0.0, over, False, {}

    def _observe(self, cue: float) -> Array:
        return np.array([cue, min(1.0, self._time / (self._length - 1))], np.float32)


class Recall(gym.Env[Array, np.int64]):
    """Shows one of two cues at the first step and asks for it at each later step with probability `asks`.

    `obs`: float32 `[4]`, the cue (one-hot at the first step, then 0), whether this step is a question, and 1. The
    correct answer is the number of the cue: +1 for a correct answer, -1 for a wrong one, 0 at steps without a question.
    An agent without memory earns 0 on average. An agent that remembers for k steps answers the first k correctly.

    `turn`: from this step on, the correct answer is the number of the other cue, and the last entry of `obs` is 0. An
    agent can learn this only if it still remembers the cue after the turn. `thespis/Reversal-v0` turns halfway.
    """

    def __init__(self, length: int = 40, asks: float = 0.25, turn: int | None = None) -> None:
        if length < 2 or not 0.0 < asks <= 1.0:
            raise ValueError(f"length {length} and asks {asks}: give at least 2 steps, and a probability in (0, 1]")
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._asks, self._turn = length, asks, length + 1 if turn is None else turn
        self._time, self._cue, self._asked = 0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self._time, self._asked = 0, False
        self._cue = int(self.np_random.random() < 0.5)
        return self._observe(), {}

    def step(self, action: np.int64) -> StepResult:
        """Reward the answer if this step is a question, and draw whether the next one is."""
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
    """A combination lock: the return is 1 if the agent dials all `length` digits of the code in order, otherwise 0.

    `obs`: float32 `[choices + 1]`, the last dialled digit (one-hot; zeros at the first step) and 1. The observation
    does not show how many digits were dialled, so an agent has to count. Nor does it show a wrong digit, so random play
    opens the lock once in choices^length episodes. The code is the same in every episode and for every seed.
    """

    def __init__(self, length: int = 10, choices: int = 4) -> None:
        if length < 1 or choices < 2:
            raise ValueError(f"length {length} and choices {choices}: give at least 1 digit, and 2 values for each")
        self.observation_space = Box(0.0, 1.0, (choices + 1,), np.float32)
        self.action_space = Discrete(choices)
        self.code: list[int] = np.random.default_rng(123).integers(0, choices, length).tolist()
        self._dialled: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Clear the dialled digits."""
        super().reset(seed=seed)
        self._dialled = []
        return self._observe(), {}

    def step(self, action: np.int64) -> StepResult:
        """Dial a digit; the last one ends the episode and earns the reward."""
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
    """Make a scripted policy for one episode of `thespis/Lock-v0`: a function from observations to actions."""
    digits = iter(Lock().code)
    return lambda obs: next(digits)


class Chain(gym.Env[Array, np.int64]):
    """Counts steps and ignores actions. Step t earns t, so the return is `length * (length + 1) / 2`.

    `obs`: float32 `[2]`, the number of earlier episodes and of steps in this one, so each observation identifies its
    step. `truncate`: whether the episode is truncated at `length` rather than terminated.
    """

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.observation_space = Box(0.0, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._truncate = length, truncate
        self._episode, self._time = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start the next episode at step 0."""
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> StepResult:
        """Count one step."""
        self._time += 1
        over = self._time >= self._length
        return self._observe(), float(self._time), over and not self._truncate, over and self._truncate, {}

    def _observe(self) -> Array:
        return np.array([self._episode, self._time], np.float32)


class Faulty(Chain):
    """A chain that fails at step `at_step` of an episode, as `fault` says.

    With `once_file`, the fault happens only if that file does not exist yet, and creates it: a restarted actor does not
    fail again.
    """

    def __init__(
        self, fault: FaultKind = "raise", at_step: int = 3, once_file: str | None = None, length: int = 10
    ) -> None:
        super().__init__(length)
        self._fault, self._at_step, self._once_file = fault, at_step, once_file

    def step(self, action: np.int64) -> StepResult:
        """Step the chain, with the fault if it is due."""
        obs, reward, terminated, truncated, info = super().step(action)
        if self._time == self._at_step and self._due():
            if self._fault == "exit":
                sys.exit()
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
    """A chain whose steps sleep for `seconds`, like an environment that waits for a remote simulator."""

    def __init__(self, seconds: float = 0.01, length: int = 100) -> None:
        super().__init__(length)
        self._seconds = seconds

    def step(self, action: np.int64) -> StepResult:
        """Sleep, then step the chain."""
        time.sleep(self._seconds)
        return super().step(action)
