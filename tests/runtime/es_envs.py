"""A small environment with image observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Pictures(gym.Env[Any, Any]):
    """Three steps; the second action pays if the picture is bright."""

    observation_space = Box(0, 255, (36, 36, 1), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self._bright)
        self._step += 1
        return self._draw(), reward, self._step == 3, False, {}

    def _draw(self) -> Any:
        self._bright = int(self.np_random.integers(2))
        return self.np_random.integers(128 * self._bright, 128 * self._bright + 127, (36, 36, 1), np.uint8)


class Huge(Pictures):
    """Finite rewards whose sum is beyond float32."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 3e38, terminated, truncated, info


def pictures() -> Pictures:
    return Pictures()
