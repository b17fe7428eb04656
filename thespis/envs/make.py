"""From an environment's name to `Environments`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import VectorEnv

from thespis.envs import atari
from thespis.envs.autoreset import Environments
from thespis.envs.spaces import Choices, Spaces
from thespis.envs.sync import OnEnv, SyncVector
from thespis.errors import ThespisError

EnvLike = str | Callable[..., gym.Env[Any, Any]]
"""A Gymnasium id, verbatim (`CartPole-v1`, `ALE/Pong-v5`, `module:EnvId-v0`), or a callable that makes one."""


def make(
    env: EnvLike,
    num_envs: int,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    on_env: OnEnv | None = None,
    render_mode: str | None = None,
) -> Environments:
    """`num_envs` environments, by the id's native vector where it has one, else one after the other in this process.

    `env_kwargs` go to the environment's constructor. `on_env(env, episode, step)` is called before each environment is
    entered; a native vector steps all at once and never calls it. To draw pictures, Python environments are used (a
    callable then gets `render_mode` as well), and for Atari there can be only one.
    """
    if num_envs < 1:
        raise ThespisError(f"cannot make {num_envs} environments; ask for at least 1")
    kwargs = dict(env_kwargs or {})
    spec = _find(env) if isinstance(env, str) else None
    name = spec.id if spec is not None else getattr(env, "__name__", repr(env))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vector = _vector(env, spec, num_envs, kwargs, on_env, render_mode)
            try:
                return Environments(vector)
            except ThespisError:
                vector.close()
                raise
    except ThespisError:
        raise
    except Exception as error:
        raise ThespisError(f"environment {name!r} cannot be made: {_line(error)}") from error


def describe(env: EnvLike, env_kwargs: Mapping[str, Any] | None = None) -> Spaces:
    """The spaces of one environment as a policy sees them; nothing stays open."""
    environments = make(env, 1, env_kwargs=env_kwargs)
    environments.close()
    return Spaces(environments.observation_space, environments.action_space)


def _vector(
    env: EnvLike,
    spec: EnvSpec | None,
    num_envs: int,
    kwargs: dict[str, Any],
    on_env: OnEnv | None,
    render_mode: str | None,
) -> VectorEnv[Any, Any, Any]:
    if spec is not None and spec.namespace == "ALE" and spec.vector_entry_point is not None:
        if render_mode is None:
            return atari.make(spec.id, num_envs, kwargs)
        if num_envs > 1:
            raise ThespisError(f"pictures of {spec.id} can be drawn for 1 environment only, not {num_envs}")
        return atari.FilmedAtari(spec.id, kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    elif spec is not None and spec.vector_entry_point is not None and not spec.additional_wrappers:
        native = gym.make_vec(spec.id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        if type(native.action_space) is gym.spaces.MultiDiscrete:
            native.action_space = Choices(native.action_space)
        return native

    def build() -> gym.Env[Any, Any]:
        if spec is not None:
            return gym.make(spec.id, disable_env_checker=True, **kwargs)
        assert callable(env)
        return env(**kwargs)

    return SyncVector(build, num_envs, on_env)


def _find(env_id: str) -> EnvSpec:
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
