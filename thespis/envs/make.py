"""From an environment's name to `Environments`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import VectorEnv

from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.user_code import resolve
from thespis.core.watch import watched
from thespis.envs import atari
from thespis.envs.autoreset import Environments
from thespis.envs.build import builder
from thespis.envs.spaces import Choices, Spaces
from thespis.envs.sync import OnEnv, SyncVector

EnvLike = str | Callable[..., gym.Env[Any, Any]]
"""A Gymnasium id, verbatim (`CartPole-v1`, `ALE/Pong-v5`, `module:EnvId-v0`), or a callable that makes one."""


def make(
    env: EnvLike | EnvConfig, num_envs: int, *, on_env: OnEnv | None = None, render_mode: str | None = None
) -> Environments:
    """`num_envs` environments, by the id's native vector where it has one, else one after the other in this process.

    `on_env(env, episode, step)` is called before each environment is entered; a native vector steps all at once and
    never calls it. Wrappers and pictures need Python environments (a callable then gets `render_mode` as well).
    """
    if num_envs < 1:
        raise ThespisError(f"cannot make {num_envs} environments; ask for at least 1")
    cfg = env if isinstance(env, EnvConfig) else EnvConfig(env)
    source = resolve(cfg.env)
    spec = find(source) if isinstance(source, str) else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vector = _vector(cfg, spec or source, num_envs, on_env, render_mode)
            try:
                return Environments(vector)
            except ThespisError:
                vector.close()
                raise
    except ThespisError:
        raise
    except Exception as error:
        name = spec.id if spec is not None else cfg.name
        raise ThespisError(f"environment {name!r} cannot be made: {_line(error)}") from error


def describe(env: EnvLike | EnvConfig) -> Spaces:
    """The spaces of one environment as a policy sees them; nothing stays open."""
    environments = make(env, 1)
    with suppress(Exception):  # the spaces are known by then
        environments.close()
    return Spaces(environments.observation_space, environments.action_space)


def _vector(
    cfg: EnvConfig, source: EnvSpec | Any, num_envs: int, on_env: OnEnv | None, render_mode: str | None
) -> VectorEnv[Any, Any, Any]:
    if isinstance(source, EnvSpec) and not cfg.wrappers:
        with watched("make"):
            native = _native(cfg, source, num_envs, render_mode)
        if native is not None:
            return native
    return SyncVector(builder(cfg, source, render_mode), num_envs, on_env)


def _native(cfg: EnvConfig, spec: EnvSpec, num_envs: int, render_mode: str | None) -> VectorEnv[Any, Any, Any] | None:
    """The id's own vector, if it has one that can do what is asked."""
    if spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    if atari.is_atari(spec):
        # Its limit counts frames, those before the first step among them, so a limit of steps is set from outside.
        if cfg.time_limit is not None or (render_mode is not None and num_envs > 1):
            return None
        kwargs = atari.stacked(cfg)
        return atari.make(spec.id, num_envs, kwargs) if render_mode is None else atari.FilmedAtari(spec.id, kwargs)
    if render_mode is not None or cfg.frame_stack is not None:
        return None
    limit = {}
    if cfg.time_limit is not None:
        if spec.max_episode_steps is None:  # then nothing says that its vector takes a limit
            return None
        limit["max_episode_steps"] = cfg.time_limit
    native = gym.make_vec(spec.id, num_envs, vectorization_mode="vector_entry_point", **{**cfg.kwargs, **limit})
    if type(native.action_space) is gym.spaces.MultiDiscrete:
        native.action_space = Choices(native.action_space)
    return native


def find(env_id: str) -> EnvSpec:
    """What Gymnasium knows of an id."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ThespisError(
                f"environment {env_id!r}: module {module!r} cannot be imported: {_line(error)}"
            ) from error
    if name.startswith("ALE/"):
        atari.register()
    try:
        namespace, base, version = parse_env_id(name)
        latest = find_highest_version(namespace, base)
        if version is None and latest is not None and name not in gym.registry:
            raise ThespisError(
                f"environment {name!r} needs a version; the latest is {get_env_id(namespace, base, latest)!r}"
            )
        return gym.spec(name)
    except gym.error.Error as error:
        raise ThespisError(f"unknown environment {env_id!r}: {_line(error)}") from error


def _line(error: Exception) -> str:
    """What `error` says, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, gym.error.Error | ImportError) else f"{type(error).__name__}: {text}"
