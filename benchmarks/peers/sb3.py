"""Stable-Baselines3: A2C, PPO and DQN. The settings have the names of its own constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium as gym
import torch
from lines import Lines, arguments
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

ALGORITHMS = {"A2C": A2C, "PPO": PPO, "DQN": DQN}


class Report(BaseCallback):
    """Print a line after each round of learning, so that steps and seconds are of whole rounds."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines, self._enough = lines, False

    def _on_training_start(self) -> None:
        self._lines.start()

    def _on_rollout_start(self) -> None:
        if self._lines.due:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            self._enough = self._lines.report(self.model.num_timesteps, returns)

    def _on_step(self) -> bool:
        return not self._enough


def environments(env: str, number: int, seed: int) -> VecEnv:
    if env.startswith("ALE/"):
        gym.register_envs(ale_py)
        atari = make_atari_env(env, number, seed, env_kwargs={"frameskip": 1})
        return VecFrameStack(atari, 4)
    return make_vec_env(env, number, seed)


def falling(start: float) -> Callable[[float], float]:
    return lambda left: start * left


def main() -> None:
    args, settings = arguments()
    torch.set_num_threads(settings.pop("threads", 1))
    envs = environments(args.env, settings.pop("n_envs", 8), args.seed)
    steps = settings.pop("total_timesteps", 1_000_000_000)
    for name in settings.pop("linear", ()):
        settings[name] = falling(settings[name])
    policy: dict[str, Any] = {} if args.env.startswith("ALE/") else {"policy_kwargs": {"net_arch": [64, 64]}}
    kind = "CnnPolicy" if args.env.startswith("ALE/") else "MlpPolicy"
    model = ALGORITHMS[args.algorithm](kind, envs, seed=args.seed, device="cpu", **policy, **settings)
    model.learn(steps, callback=Report(Lines(args.until, args.seconds)))


if __name__ == "__main__":
    main()
