"""Makes `Environments` from an environment's id, function or config."""

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
from thespis.core.errors import FOREIGN_ERRORS, ThespisError
from thespis.core.user_code import resolve
from thespis.core.watchdog import watch_env
from thespis.envs import atari
from thespis.envs.autoreset import Environments
from thespis.envs.build import builder
from thespis.envs.spaces import FastMultiDiscrete, Spaces
from thespis.envs.sync import OnEnv, SyncVector

EnvLike = str | Callable[..., gym.Env[Any, Any]]
"""A Gymnasium id (`CartPole-v1`, `ALE/Pong-v5`, `module:EnvId-v0`), or a function that returns an environment."""


def make_envs(
    env: EnvLike | EnvConfig, num_envs: int, *, on_env: OnEnv | None = None, render_mode: str | None = None
) -> Environments:
    """Make `num_envs` environments: the id's native vector if it has one, otherwise a `SyncVector` in this process.

    A `SyncVector` calls `on_env(env, episode, step)` before it enters an environment; a native vector never calls it.
    Wrappers and rendering need Python environments; a function is then also passed `render_mode`.
    """
    if num_envs < 1:
        raise ThespisError(f"cannot make {num_envs} environments; ask for at least 1")
    cfg = EnvConfig(env) if isinstance(env, str) or callable(env) else env
    source = resolve(cfg.env)
    spec = find_env(source) if isinstance(source, str) else None
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
    except FOREIGN_ERRORS as error:
        name = spec.id if spec is not None else cfg.name
        raise ThespisError(f"environment {name!r} cannot be made: {_line(error)}") from error


def describe_env(env: EnvLike | EnvConfig) -> Spaces:
    """Return the spaces of one environment as a policy sees them. The environment is made and closed again."""
    environments = make_envs(env, 1)
    with suppress(Exception):  # the spaces are known already
        environments.close()
    return Spaces(environments.observation_space, environments.action_space)


def _vector(
    cfg: EnvConfig, source: EnvSpec | Any, num_envs: int, on_env: OnEnv | None, render_mode: str | None
) -> VectorEnv[Any, Any, Any]:
    if isinstance(source, EnvSpec) and not cfg.wrappers:
        with watch_env("make"):
            native = _native(cfg, source, num_envs, render_mode)
        if native is not None:
            return native
    return SyncVector(builder(cfg, source, render_mode), num_envs, on_env)


def _native(cfg: EnvConfig, spec: EnvSpec, num_envs: int, render_mode: str | None) -> VectorEnv[Any, Any, Any] | None:
    """Return the id's native vector; None if it has none, or none that supports the settings."""
    if spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    if atari.is_atari(spec):
        # ale-py's limit counts frames, including no-ops before the first step, so a step limit needs a wrapper.
        if cfg.time_limit is not None or (render_mode is not None and num_envs > 1):
            return None
        kwargs = atari.vector_kwargs(cfg)
        return (
            atari.make_atari(spec.id, num_envs, kwargs) if render_mode is None else atari.FilmedAtari(spec.id, kwargs)
        )
    if render_mode is not None or cfg.frame_stack is not None:
        return None
    limit = {}
    if cfg.time_limit is not None:
        if spec.max_episode_steps is None:  # the vector may not accept a limit
            return None
        limit["max_episode_steps"] = cfg.time_limit
    native = gym.make_vec(spec.id, num_envs, vectorization_mode="vector_entry_point", **{**cfg.kwargs, **limit})
    if type(native.action_space) is gym.spaces.MultiDiscrete:
        native.action_space = FastMultiDiscrete(native.action_space)
    return native


def find_env(env_id: str) -> EnvSpec:
    """Return Gymnasium's spec of an environment id; raise a `ThespisError` if the id is unknown."""
    module, _, name = env_id.rpartition(":")
    if env_id.endswith(".py"):
        raise ThespisError(f"{env_id!r} is a file; name the function or class in it, as {env_id}::make_env")
    if module:
        try:
            importlib.import_module(module)
        except FOREIGN_ERRORS as error:
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


def _line(error: BaseException) -> str:
    """Return the message of `error` in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, gym.error.Error | ImportError) else f"{type(error).__name__}: {text}"
