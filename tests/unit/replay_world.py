"""Episodes to insert into a replay, and the items that follow from the whole episodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thespis.core.types import Array, Inputs, PolicyOutput, Stream, Unroll, Version
from thespis.envs.autoreset import EnvStep
from thespis.envs.inputs import next_inputs
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.writers import UnrollWriter

LOOSE = SamplesPerInsert(1.0, 1, 1e9)
STREAM = Stream(("actor", 0), 1)


class Truth(NamedTuple):
    """One recorded step."""

    obs: Array
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Array


def worth(obs: Any, actions: Array) -> Array:
    """Return made-up Q-values of the chosen and of the best actions."""
    best = obs.reshape(len(obs), -1)[:, -1] % 17 + obs.reshape(len(obs), -1)[:, 0] % 13
    return np.stack([best - 0.5 * actions, best], 1).astype(np.float32)


class World:
    """Environments with a different frame at every step, and a record of all their episodes."""

    def __init__(self, seed: int, envs: int, mode: str, stack: int, frames: int = 0) -> None:
        self.rng, self.envs, self.mode, self.stack = np.random.default_rng(seed), envs, mode, stack
        self._frames = frames
        self.episodes: list[list[Truth]] = []
        self._live: list[list[Truth]] = [[] for _ in range(envs)]
        self._over = np.zeros(envs, np.bool_)
        self.obs = np.stack([self._open(b) for b in range(envs)])

    def _frame(self) -> Array:
        self._frames += 1
        digits = np.array([self._frames % 250, self._frames // 250], np.uint8)
        return digits.astype(np.float32) if self.stack == 1 else np.tile(digits[:, None], (1, 7))

    def _open(self, b: int) -> Array:
        self._live[b] = []
        self.episodes.append(self._live[b])
        return self._frame() if self.stack == 1 else np.stack([self._frame() for _ in range(self.stack)])

    def _next(self, obs: Array) -> Array:
        return self._frame() if self.stack == 1 else np.concatenate([obs[1:], self._frame()[None]])

    def step(self, actions: Array) -> EnvStep:
        rows = range(self.envs)
        first, valid, rewards = self._over.copy(), ~self._over, np.zeros(self.envs, np.float32)
        terminated, truncated = np.zeros((2, self.envs), np.bool_)
        final = np.zeros_like(self.obs)
        obs = self.obs.copy()
        for b in rows:
            if first[b] and self.mode == "next step":
                obs[b] = self._open(b)
                continue
            rewards[b] = self.rng.integers(-3, 4)
            terminated[b], truncated[b] = self.rng.random(2) < 0.12
            obs[b] = final[b] = self._next(self.obs[b])
            self._live[b].append(
                Truth(self.obs[b], int(actions[b]), float(rewards[b]), terminated[b], truncated[b], final[b].copy())
            )
        over = terminated | truncated
        if self.mode == "next step":
            self._over = over
            self.obs = obs
            return EnvStep(obs, rewards, terminated, truncated, valid, first, None, [])
        for b in np.flatnonzero(over):
            obs[b] = self._open(b)
        self.obs = obs
        return EnvStep(obs, rewards, terminated, truncated, np.ones_like(over), over, final, [])

    def unrolls(self, length: int, number: int) -> list[Unroll]:
        nothing = np.zeros(self.envs, np.int64)
        inputs = Inputs(self.obs, np.ones(self.envs, np.bool_), nothing, nothing.astype(np.float32))
        writer, made = UnrollWriter(length, inputs, ()), []
        while len(made) < number:
            actions = self.rng.integers(0, 5, self.envs)
            acted = PolicyOutput(actions, np.zeros(self.envs, np.float32), (), worth(inputs.obs, actions))
            step = self.step(actions)
            inputs = next_inputs(step, actions)
            unroll = writer.write(acted, Version(0, len(made)), step, inputs)
            if unroll is not None:
                made.append(unroll)
        return made

    def expect(self, n: int, discount: float) -> dict[bytes, tuple[int, float, float, Array]]:
        """Return action, R, D and next observation of all complete windows, by observation."""
        expected = {}
        for episode in self.episodes:
            ended = bool(episode) and (episode[-1].terminated or episode[-1].truncated)
            for t, step in enumerate(episode):
                window = episode[t : t + n]
                if len(window) == n or ended:
                    reward = sum(discount**k * part.reward for k, part in enumerate(window))
                    worth = 0.0 if window[-1].terminated else discount ** len(window)
                    expected[step.obs.tobytes()] = (step.action, reward, worth, window[-1].next_obs)
        return expected
