"""Ape-X DPG finds the best linear controller of a system for which it is known. Simulated: every run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from thespis import train


class Regulator(gym.Env[Any, Any]):
    """x' = x + 0.1 a, rewarded by -(x^2 + 0.1 a^2), for 20 steps; zero is not in the middle of the actions."""

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
    """K of the best a = -K x: the value of x is -P x^2, and P is what it is one step earlier."""
    p = 1.0
    for _ in range(10_000):
        k = discount * p * 0.1 / (0.1 + discount * p * 0.01)
        p = 1.0 + 0.1 * k * k + discount * p * (1.0 - 0.1 * k) ** 2
    return k


@pytest.mark.timeout(300)
def test_the_gain_is_that_of_riccati(tmp_path: Path) -> None:
    """One reward at a time: over several, the noise of the later actions would be part of the value."""
    run = train(
        "apex-dpg", env=Regulator, on="simulation", total_steps=4_000, discount=0.95, n_step=1, target_period=25,
        network={"hidden": (64, 64), "critic_hidden": (64, 64)}, reward={"kind": "scale", "scale": 0.1},
        replay={"samples_per_insert": 128.0, "warm_up": 500}, optimizer={"anneal": True},
        run_dir=tmp_path / "run", quiet=True, eval_episodes=0,
    )  # fmt: skip
    states = np.linspace(-0.8, 0.8, 9, dtype=np.float32)
    actions = np.array([run.policy.act(np.array([x])).item() for x in states])
    slope, offset = np.polyfit(states, actions, 1)
    assert riccati_gain(1.0) == pytest.approx(2.7016, abs=1e-3)
    assert -slope == pytest.approx(riccati_gain(0.95), rel=0.25)
    assert offset == pytest.approx(0.0, abs=0.4)
