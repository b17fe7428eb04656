"""A linear system with a known optimal controller."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Regulator(gym.Env[Any, Any]):
    """x' = x + 0.1 a, rewarded by -(x^2 + 0.1 a^2), for 20 steps. The action bounds are not centred at zero."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-4.0, 6.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._steps = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self._x, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -float(self._x[0] ** 2 + 0.1 * action[0] ** 2)
        self._x, self._steps = self._x + np.float32(0.1) * action, self._steps + 1
        return self._x, reward, False, self._steps == 20, {}


def riccati_gain(discount: float) -> float:
    """Return K of the optimal a = -K x. The value of x is -P x^2, with P from the Riccati recursion."""
    p = 1.0
    for _ in range(10_000):
        k = discount * p * 0.1 / (0.1 + discount * p * 0.01)
        p = 1.0 + 0.1 * k * k + discount * p * (1.0 - 0.1 * k) ** 2
    return k
