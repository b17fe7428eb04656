"""PPO in one file, in the style of CleanRL: no layer between algorithm and environments, and only numbers as options.

`native`: Gymnasium's own vector of the environment (numpy for CartPole, C++ for Atari) instead of one object each.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from lines import EPISODES, Lines, arguments
from torch import Tensor, nn
from torch.distributions import Categorical

DEFAULTS: dict[str, Any] = {
    "native": False,
    "n_envs": 8,
    "n_steps": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "anneal_steps": 0,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy": 0.01,
    "value": 0.5,
    "max_norm": 0.5,
    "threads": 1,
}


def environments(env: str, number: int, native: bool) -> VectorEnv[Any, Any, Any]:
    atari = env.startswith("ALE/")
    gym.register_envs(ale_py)
    if native:
        kwargs = {"num_threads": 1, "autoreset_mode": AutoresetMode.NEXT_STEP} if atari else {}
        return gym.make_vec(env, number, vectorization_mode="vector_entry_point", **kwargs)

    def make() -> gym.Env[Any, Any]:
        if not atari:
            return gym.make(env)
        return FrameStackObservation(AtariPreprocessing(gym.make(env, frameskip=1)), 4)

    return SyncVectorEnv([make] * number, autoreset_mode=AutoresetMode.NEXT_STEP)


def layer(made: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """CleanRL's two networks of 64-64 for vectors, and its shared Nature CNN for images."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__()
        shape, actions = envs.single_observation_space.shape, int(envs.single_action_space.n)
        self.image = len(shape) == 3
        if self.image:
            convolutions = [layer(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()]
            rest = [layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU()]
            self.torso, self.critic_torso, width = nn.Sequential(*convolutions, *rest), None, 512
        else:
            self.torso, self.critic_torso, width = self._mlp(shape[0]), self._mlp(shape[0]), 64
        self.actor, self.critic = layer(nn.Linear(width, actions), 0.01), layer(nn.Linear(width, 1), 1.0)

    @staticmethod
    def _mlp(inputs: int) -> nn.Sequential:
        return nn.Sequential(layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        obs = obs.float() / 255.0 if self.image else obs
        hidden = self.torso(obs)
        valued = hidden if self.critic_torso is None else self.critic_torso(obs)
        return self.actor(hidden), self.critic(valued).flatten()


class PPO:
    def __init__(self, envs: VectorEnv[Any, Any, Any], cfg: dict[str, Any], seed: int) -> None:
        self.envs, self.cfg, self.agent = envs, cfg, Agent(envs)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=cfg["learning_rate"], eps=1e-5)
        self.obs = torch.as_tensor(envs.reset(seed=seed)[0])
        self.done = torch.zeros(envs.num_envs)
        self.steps = 0
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self._running = np.zeros(envs.num_envs)

    def collect(self) -> dict[str, Tensor]:
        """Collect `n_steps` of every environment, as flat rows without the reset rows."""
        kept: list[tuple[Tensor, ...]] = []
        for _ in range(self.cfg["n_steps"]):
            with torch.no_grad():
                logits, value = self.agent(self.obs)
                # The computation of `Categorical`, without its checks, which take a third of a step's time.
                logp = logits - logits.logsumexp(-1, keepdim=True)
                action = torch.multinomial(logp.exp(), 1)
            obs, reward, terminated, truncated, _ = self.envs.step(action[:, 0].numpy())
            chosen = logp.gather(1, action)[:, 0]
            kept.append((self.obs, action[:, 0], chosen, value, torch.as_tensor(reward).float(), self.done))
            self.steps += int((self.done == 0).sum())
            over = terminated | truncated
            self._book(reward, over)
            # Native vectors overwrite the array that they return.
            self.obs, self.done = torch.as_tensor(np.array(obs)), torch.as_tensor(over).float()
        obs, action, logp, value, reward, done = (torch.stack(part) for part in zip(*kept, strict=True))
        advantage = self._advantages(value, reward, done)
        rows = (done == 0).flatten()
        parts = {"obs": obs, "action": action, "logp": logp, "advantage": advantage, "target": advantage + value}
        return {name: part.flatten(0, 1)[rows] for name, part in parts.items()}

    def _book(self, reward: Any, over: Any) -> None:
        self._running += reward
        if over.any():
            self.returns.extend(self._running[over].tolist())
            self._running[over] = 0.0

    def _advantages(self, value: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        with torch.no_grad():
            following, ended = self.agent(self.obs)[1], self.done
        advantage, last = torch.zeros_like(reward), torch.zeros_like(self.done)
        for t in reversed(range(len(reward))):
            delta = reward[t] + self.cfg["gamma"] * following * (1 - ended) - value[t]
            last = delta + self.cfg["gamma"] * self.cfg["gae_lambda"] * (1 - ended) * last
            advantage[t], following, ended = last, value[t], done[t]
        return advantage

    def learn(self, batch: dict[str, Tensor]) -> None:
        number = len(batch["action"])
        for _ in range(self.cfg["epochs"]):
            for rows in torch.randperm(number).chunk(self.cfg["minibatches"]):
                self._step({name: part[rows] for name, part in batch.items()})

    def _step(self, batch: dict[str, Tensor]) -> None:
        cfg = self.cfg
        logits, value = self.agent(batch["obs"])
        policy = Categorical(logits=logits, validate_args=False)
        ratio = (policy.log_prob(batch["action"]) - batch["logp"]).exp()
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1 - cfg["clip"], 1 + cfg["clip"])
        loss = -torch.min(advantage * ratio, advantage * clipped).mean()
        loss = loss + cfg["value"] * 0.5 * (value - batch["target"]).square().mean()
        loss = loss - cfg["entropy"] * policy.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), cfg["max_norm"])
        self.optimizer.step()

    def anneal(self) -> None:
        if self.cfg["anneal_steps"]:
            left = max(0.0, 1.0 - self.steps / self.cfg["anneal_steps"])
            self.optimizer.param_groups[0]["lr"] = self.cfg["learning_rate"] * left


def main() -> None:
    args, settings = arguments()
    cfg = {**DEFAULTS, **settings}
    torch.manual_seed(args.seed)
    torch.set_num_threads(cfg["threads"])
    ppo = PPO(environments(args.env, cfg["n_envs"], cfg["native"]), cfg, args.seed)
    lines = Lines(args.until, args.seconds)
    lines.start()
    while not lines.report(ppo.steps, ppo.returns):
        ppo.anneal()
        ppo.learn(ppo.collect())


if __name__ == "__main__":
    main()
