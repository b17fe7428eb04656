"""A vector of Python environments in one process, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from thespis.core.errors import FOREIGN_ERRORS, EnvError, ThespisError, describe_error
from thespis.core.types import Array, Tree
from thespis.core.watchdog import watch_env
from thespis.envs.infos import ENDED
from thespis.envs.spaces import leaves, observation_space

OnEnv = Callable[[int, int, int], None]
"""Called with environment, episode and step before each environment is entered."""
SEED_LIMIT = 2**31
"""Exclusive upper bound of seeds: numpy's RandomState and many C simulators accept no larger ones."""
_NUMBERS, _FLAGS = (int, float, np.number, np.bool_), (bool, np.bool_)
"""Accepted types of rewards and of the flags `terminated` and `truncated`."""


class SyncVector(VectorEnv[Any, Any, Any]):
    """A vector of Python environments with next-step autoreset.

    It calls `on_env(env, episode, step)` before it enters an environment (step 0 is the reset), so that a watchdog can
    name an environment that hangs. Episode e of environment i has the seed `seed + e * num_envs + i`: no two episodes
    share a seed, and the start of an episode does not depend on earlier ones. The next step overwrites returned arrays.
    """

    def __init__(self, build: Callable[[], gym.Env[Any, Any]], num_envs: int, on_env: OnEnv | None = None) -> None:
        self.num_envs = num_envs
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.envs: list[gym.Env[Any, Any]] = []
        try:
            for index in range(num_envs):
                with watch_env("make", index):
                    self.envs.append(build())
            self._adopt_spaces()
        except BaseException:
            self.close()
            raise
        self._leaves = leaves(observation_space(self.single_observation_space))
        self._buffers = [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._rewards = np.zeros(num_envs)
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._episodes, self._steps = [0] * num_envs, [0] * num_envs
        self._over = [False] * num_envs
        self._ended: dict[int, Any] = {}
        self._seed = 0
        self._on_env = on_env
        self._parked = [False] * num_envs

    def _adopt_spaces(self) -> None:
        first = self.envs[0]
        for index, env in enumerate(self.envs):
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise ThespisError(f"environment {index} has other spaces than environment 0; give all the same spaces")
        self.metadata["render_fps"] = first.metadata.get("render_fps")
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start episode 0 of every environment, and unpark all of them."""
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) if seed is None else seed
        self._episodes = [0] * self.num_envs
        self._parked = [False] * self.num_envs
        for index in range(self.num_envs):
            self._open(index)
        return self._observations(), {}

    def step(self, actions: Array) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        """Step every environment, or reset it if its episode has ended; parked environments stay unchanged."""
        self._ended = {}
        for index in range(self.num_envs):
            if self._parked[index]:
                self._rewards[index] = 0.0
                self._terminated[index] = self._truncated[index] = False
            elif self._over[index]:
                self._episodes[index] += 1
                self._open(index)
            else:
                self._advance(index, actions[index])
        return self._observations(), self._rewards, self._terminated, self._truncated, {ENDED: self._ended}

    def park(self, rows: Array) -> None:
        """Do not step the environments marked in `rows`, bool `[B]`, until the next reset."""
        self._parked = rows.tolist()

    def render(self) -> tuple[Any, ...]:
        """Return the rendered frame of each environment."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments, then raise the first error."""
        errors: list[Exception | SystemExit] = []
        for index, env in enumerate(self.envs):
            try:
                with watch_env("close", index):
                    env.close()
            except FOREIGN_ERRORS as error:
                errors.append(error)
        if errors:
            first = errors[0]
            raise first if isinstance(first, Exception) else RuntimeError(describe_error(first))

    def _open(self, index: int) -> None:
        self._enter(index, 0)
        seed = (self._seed + self._episodes[index] * self.num_envs + index) % SEED_LIMIT
        try:
            obs, _ = self.envs[index].reset(seed=seed)
        except FOREIGN_ERRORS as error:
            raise self._error(index, f"reset raised {describe_error(error)}") from error
        self._rewards[index] = 0.0
        self._terminated[index] = self._truncated[index] = self._over[index] = False
        self._write(index, obs)

    def _advance(self, index: int, action: Any) -> None:
        self._enter(index, self._steps[index] + 1)
        try:
            obs, reward, terminated, truncated, info = self.envs[index].step(action)
        except FOREIGN_ERRORS as error:
            raise self._error(index, f"step raised {describe_error(error)}") from error
        if not isinstance(reward, _NUMBERS):
            shape = f" of shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
            raise self._error(index, f"reward is a {type(reward).__name__}{shape}, not a number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, _FLAGS):
                raise self._error(index, f"{name} is {flag!r}, not a bool")
        self._rewards[index] = reward
        self._terminated[index], self._truncated[index] = terminated, truncated
        self._over[index] = bool(terminated or truncated)
        if self._over[index]:
            self._ended[index] = info
        self._write(index, obs)

    def _enter(self, index: int, step: int) -> None:
        self._steps[index] = step
        if self._on_env is not None:
            self._on_env(index, self._episodes[index], step)

    def _write(self, index: int, obs: Any) -> None:
        for leaf, buffer in zip(self._leaves, self._buffers, strict=True):
            try:
                row = obs if leaf.key is None else obs[leaf.key]
                if type(row) is not np.ndarray or row.dtype != leaf.dtype:
                    row = leaf.cast(row)
            except (KeyError, TypeError, IndexError):
                raise self._error(index, f"{leaf.name} is missing") from None
            except ValueError as error:
                raise self._error(index, str(error)) from error
            if row.shape != leaf.shape:
                raise self._error(index, f"{leaf.name} has shape {row.shape}, the space says {leaf.shape}")
            buffer[index] = row

    def _observations(self) -> Tree:
        if self._leaves[0].key is None:
            return self._buffers[0]
        return {str(leaf.key): buffer for leaf, buffer in zip(self._leaves, self._buffers, strict=True)}

    def _error(self, index: int, what: str) -> EnvError:
        return EnvError(what, env=index, episode=self._episodes[index], step=self._steps[index])
