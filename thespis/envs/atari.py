"""The Atari preset: ale-py's C++ vector with the preprocessing of Mnih et al. (2015), whole games, true scores."""

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
    # Clipping belongs to the algorithm; episode returns are the game's own score.
    "reward_clipping": False,
    # One actor is meant for one core.
    "num_threads": 1,
    "autoreset_mode": AutoresetMode.NEXT_STEP,
}
"""Frame-skip, sticky actions, action set and time limit are left to the id (v5: 4, 0.25, minimal, 108,000 frames)."""


def register() -> None:
    """Make the `ALE/` ids known to Gymnasium."""
    try:
        import ale_py
    except ImportError as error:
        raise ThespisError('Atari environments need ale-py; install it with: pip install "thespis[atari]"') from error
    gym.register_envs(ale_py)


def is_atari(spec: EnvSpec) -> bool:
    return spec.namespace == "ALE" and spec.vector_entry_point is not None


def stacked(cfg: EnvConfig) -> dict[str, Any]:
    """The arguments of the constructor; the emulator stacks frames itself."""
    return {**({} if cfg.frame_stack is None else {"stack_num": cfg.frame_stack}), **cfg.kwargs}


def make(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """The native vector of an `ALE/` id; `kwargs` override the preset."""
    return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **{**PRESET, **kwargs})


class FilmedAtari(VectorEnv[Any, Any, Any]):
    """One Atari environment as training sees it, with colour pictures at the console's own size.

    ale-py's vector shows only the observations, so a second emulator in colour gets the same seed and actions.
    Both are deterministic; should they ever part, step raises rather than film another game.
    """

    def __init__(self, env_id: str, kwargs: Mapping[str, Any]) -> None:
        self._player = make(env_id, 1, kwargs)
        colour = {"grayscale": False, "stack_num": 1, "img_height": 210, "img_width": 160}
        self._camera = make(env_id, 1, {**kwargs, **colour})
        self.num_envs, self.render_mode = 1, "rgb_array"
        self.metadata = dict(self._player.metadata)
        self.single_observation_space = self._player.single_observation_space
        self.single_action_space = self._player.single_action_space
        self.observation_space, self.action_space = self._player.observation_space, self._player.action_space
        self._frame = np.zeros((210, 160, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seed = int(np.random.SeedSequence().generate_state(1)[0]) // 2 if seed is None else seed
        picture, _ = self._camera.reset(seed=seed)
        self._frame = picture[0, 0]
        return self._player.reset(seed=seed)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self._player.step(actions)
        picture, _, _, _, filmed = self._camera.step(actions)
        if info["frame_number"] != filmed["frame_number"] or info["lives"] != filmed["lives"]:
            raise EnvError("the filmed game is no longer the one being played", env=0, episode=None, step=None)
        self._frame = picture[0, 0]
        return obs, rewards, terminated, truncated, info

    def render(self) -> tuple[Array]:
        return (self._frame,)

    def close_extras(self, **kwargs: Any) -> None:
        self._player.close()
        self._camera.close()


class OneAtari(gym.Env[Array, np.int64]):
    """One game of the native vector as a Python environment, for what is put around single environments."""

    def __init__(self, env_id: str, kwargs: Mapping[str, Any], film: bool) -> None:
        self._vector = FilmedAtari(env_id, kwargs) if film else make(env_id, 1, kwargs)
        self.metadata = dict(self._vector.metadata)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, _ = self._vector.reset(seed=seed)
        return obs[0].copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminated, truncated, _ = self._vector.step(np.array([action], np.int64))
        return obs[0].copy(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        return self._vector.render()[0]  # type: ignore[index]

    def close(self) -> None:
        self._vector.close()
