"""The Atari preset: ale-py's C++ vector with the preprocessing of Mnih et al. (2015), full games, unclipped scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from thespis.core.env_config import EnvConfig
from thespis.core.errors import EnvError, ThespisError
from thespis.core.types import Array

PRESET: Mapping[str, Any] = {
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "stack_num": 4,
    "maxpool": True,
    "noop_max": 30,
    "use_fire_reset": True,
    "episodic_life": False,
    # Algorithms clip rewards themselves; episode returns are the game's own scores.
    "reward_clipping": False,
    # One actor uses one core.
    "num_threads": 1,
    "autoreset_mode": AutoresetMode.NEXT_STEP,
}
"""The id determines frame skip, sticky actions, action set and time limit (v5: 4, 0.25, minimal, 108,000 frames)."""


def register() -> None:
    """Register the `ALE/` ids with Gymnasium."""
    try:
        import ale_py
    except ImportError as error:
        raise ThespisError('Atari environments need ale-py; install it with: pip install "thespis[atari]"') from error
    gym.register_envs(ale_py)


def is_atari(spec: EnvSpec) -> bool:
    """Whether the id is an `ALE/` id with a native vector."""
    return spec.namespace == "ALE" and spec.vector_entry_point is not None


def vector_kwargs(cfg: EnvConfig) -> dict[str, Any]:
    """Return the constructor arguments of the native vector, which stacks frames itself."""
    return {**({} if cfg.frame_stack is None else {"stack_num": cfg.frame_stack}), **cfg.kwargs}


def make_atari(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Make the native vector of an `ALE/` id; `kwargs` override the preset."""
    return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **{**PRESET, **kwargs})


class FilmedAtari(VectorEnv[Any, Any, Any]):
    """One Atari environment with the observations of training, and colour frames at the console's resolution.

    ale-py's vector renders no frames, so a second emulator in colour gets the same seed and actions. Both are
    deterministic. If they ever diverge, `step` raises, so that a video never shows another game.
    """

    def __init__(self, env_id: str, kwargs: Mapping[str, Any]) -> None:
        self._player = make_atari(env_id, 1, kwargs)
        colour = {"grayscale": False, "stack_num": 1, "img_height": 210, "img_width": 160}
        self._camera = make_atari(env_id, 1, {**kwargs, **colour})
        self.num_envs, self.render_mode = 1, "rgb_array"
        self.metadata = dict(self._player.metadata)
        self.single_observation_space = self._player.single_observation_space
        self.single_action_space = self._player.single_action_space
        self.observation_space, self.action_space = self._player.observation_space, self._player.action_space
        self._frame = np.zeros((210, 160, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset both emulators with the same seed."""
        seed = int(np.random.SeedSequence().generate_state(1)[0]) // 2 if seed is None else seed
        picture, _ = self._camera.reset(seed=seed)
        self._frame = picture[0, 0]
        return self._player.reset(seed=seed)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step both emulators and compare their frame numbers and lives."""
        obs, rewards, terminated, truncated, info = self._player.step(actions)
        picture, _, _, _, filmed = self._camera.step(actions)
        if info["frame_number"] != filmed["frame_number"] or info["lives"] != filmed["lives"]:
            raise EnvError("the recorded game diverged from the played one", env=0, episode=None, step=None)
        self._frame = picture[0, 0]
        return obs, rewards, terminated, truncated, info

    def render(self) -> tuple[Array]:
        """Return the colour frame of the last step."""
        return (self._frame,)

    def close_extras(self, **kwargs: Any) -> None:
        """Close both emulators."""
        self._player.close()
        self._camera.close()


class SingleAtari(gym.Env[Array, np.int64]):
    """A native vector of one game as a Python environment, so that wrappers of single environments can be applied."""

    def __init__(self, env_id: str, kwargs: Mapping[str, Any], film: bool) -> None:
        self._vector = FilmedAtari(env_id, kwargs) if film else make_atari(env_id, 1, kwargs)
        self.metadata = dict(self._vector.metadata)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset the game."""
        obs, _ = self._vector.reset(seed=seed)
        return obs[0].copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step the game."""
        obs, rewards, terminated, truncated, _ = self._vector.step(np.array([action], np.int64))
        return obs[0].copy(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """Return the colour frame of the last step."""
        return self._vector.render()[0]  # type: ignore[index]

    def close(self) -> None:
        """Close the emulator."""
        self._vector.close()
