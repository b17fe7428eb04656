"""Wrappers of Python environments: frame stacking, and dict keys for the parts of tuple observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from thespis.core.errors import ThespisError
from thespis.core.types import Array
from thespis.envs.spaces import AnySpace

JoinFrames = Callable[[Sequence[Any]], Array]


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks the last `size` observations, oldest first. At an episode's start all are copies of its first observation.

    Vectors are concatenated. Images are concatenated along their channel axis, first or last. Images without channels,
    `[H, W]`, become the channels of one image `[size, H, W]`, as in Atari. Every part of a Dict is stacked.
    """

    def __init__(self, env: gym.Env[Any, Any], size: int) -> None:
        super().__init__(env)
        space = env.observation_space
        self._frames: deque[Any] = deque(maxlen=size)
        self._joins: dict[str, JoinFrames] | JoinFrames
        if isinstance(space, Dict):
            self._joins = {key: _join(part) for key, part in space.spaces.items()}
            self.observation_space = Dict(
                {key: _stacked(part, size, self._joins[key]) for key, part in space.spaces.items()}
            )
        else:
            self._joins = _join(space)
            self.observation_space = _stacked(space, size, self._joins)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and fill the stack with the first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([_kept(obs)] * (self._frames.maxlen or 1))
        return self._stack(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and push its observation onto the stack."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(_kept(obs))
        return self._stack(), reward, terminated, truncated, info

    def _stack(self) -> Any:
        if isinstance(self._joins, dict):
            return {key: join([frame[key] for frame in self._frames]) for key, join in self._joins.items()}
        return self._joins(self._frames)


class NamedParts(gym.ObservationWrapper[Any, Any, Any]):
    """Turns tuple observations into dicts with the keys "0", "1", ..., because networks read dicts."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        parts = cast("Tuple[Any]", env.observation_space).spaces
        self.observation_space = Dict({str(number): part for number, part in enumerate(parts)})

    def observation(self, observation: Any) -> dict[str, Any]:
        """Return the tuple observation as a dict."""
        return named_parts(observation)


def named_parts(obs: Sequence[Any]) -> dict[str, Any]:
    """Return a tuple observation as a dict with the keys "0", "1", ...."""
    return {str(number): part for number, part in enumerate(obs)}


def _kept(obs: Any) -> Any:
    """Return a copy, because many environments write the next observation into the same array."""
    return {key: np.array(part) for key, part in obs.items()} if isinstance(obs, dict) else np.array(obs)


def _join(space: AnySpace) -> JoinFrames:
    """Return a function that stacks observations of `space`."""
    shape = space.shape
    if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete) or shape is None or len(shape) > 3:
        raise ThespisError(f"--frame-stack cannot stack observations of {space}; leave it off, or wrap the environment")
    if len(shape) in (0, 2):
        return lambda frames: np.stack(list(frames))
    # The smaller of an image's outer axes holds the channels, as in `ImageTorso`.
    axis = 2 if len(shape) == 3 and shape[-1] < shape[0] else 0
    return lambda frames: np.concatenate(list(frames), axis)


def _stacked(space: AnySpace, size: int, join: JoinFrames) -> AnySpace:
    if isinstance(space, Box):
        dtype: Any = space.dtype
        return Box(join([space.low] * size), join([space.high] * size), dtype=dtype)
    if isinstance(space, Discrete):
        return MultiDiscrete([space.n] * size, start=[space.start] * size)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(join([space.nvec] * size), start=join([space.start] * size))
    return MultiBinary(join([np.zeros(space.shape or (), np.int8)] * size).shape)
