"""Environments for the storm, and its callback. Each starts two processes, one of them in a separate session."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Signs(gym.Env[Any, Any]):
    """Asks ten times per episode whether the first number is positive. Its helper processes only sleep."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space
        self._helpers = [
            subprocess.Popen(["sleep", "3600"], start_new_session=apart, stdout=subprocess.DEVNULL)
            for apart in (False, True)
        ]
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._ask(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = float((float(np.ravel(action)[0]) > 0.5) == (self._obs[0] > 0))
        return self._ask(), reward, self._steps % 10 == 0, False, {}

    def close(self) -> None:
        for helper in self._helpers:
            helper.kill()
            helper.wait()

    def _ask(self) -> Any:
        self._obs = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._obs


class EndsOnRequest:
    """A callback that ends the run once a file exists."""

    def on_report(self, row: dict[str, Any]) -> str | None:
        return "stop" if Path(os.environ["THESPIS_STORM_ASK"]).exists() else None


def discrete() -> gym.Env[Any, Any]:
    return Signs(Discrete(2))


def continuous() -> gym.Env[Any, Any]:
    return Signs(Box(-1.0, 1.0, (1,), np.float32))


def write_demonstrations(directory: Path) -> None:
    """Write episodes of right answers, for architectures that learn from demonstrations."""
    from thespis.envs.make import make_envs
    from thespis.experience.demonstrations import save_demonstrations
    from thespis.experience.recording import record

    envs = make_envs(discrete, 1)
    try:
        episodes = record(envs, lambda inputs: (inputs.obs[:, 0] > 0).astype(np.int64), 20, 0)
    finally:
        envs.close()
    save_demonstrations(directory, episodes, {"env": "storm_envs::discrete"})
