"""Builds one Python environment from its settings: constructor, wrappers, time limit, frame stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Tuple

from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.user_code import locate, resolve
from thespis.envs import atari
from thespis.envs.wrappers import FrameStack, NamedParts

AnyEnv = gym.Env[Any, Any]


def builder(cfg: EnvConfig, source: EnvSpec | Callable[..., Any], render_mode: str | None) -> Callable[[], AnyEnv]:
    """Return a function that makes one environment: constructor, wrappers in order, time limit, frame stack.

    The time limit counts the agent's steps, so it is outside a wrapper that skips frames. The frame stack is outside
    wrappers that change frames.
    """
    wrappers = [(resolve(wrapper), _named(wrapper)) for wrapper in cfg.wrappers]
    construct, stacks = _constructor(cfg, source, render_mode)

    def build() -> AnyEnv:
        env = _checked(construct(), cfg.name)
        for wrapper, name in wrappers:
            env = _checked(wrapper(env), f"wrapper {name}")
        if cfg.time_limit is not None:
            env = gym.wrappers.TimeLimit(env, cfg.time_limit)
        if isinstance(env.observation_space, Tuple):
            env = NamedParts(env)
        return env if cfg.frame_stack is None or stacks else FrameStack(env, cfg.frame_stack)

    return build


def _constructor(
    cfg: EnvConfig, source: EnvSpec | Callable[..., Any], render_mode: str | None
) -> tuple[Callable[[], Any], bool]:
    """Return the constructor of the environment, and whether it already stacks frames."""
    if isinstance(source, EnvSpec) and atari.is_atari(source):
        env_id, kwargs = source.id, atari.vector_kwargs(cfg)
        return lambda: atari.SingleAtari(env_id, kwargs, film=render_mode is not None), True
    kwargs = dict(cfg.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if not isinstance(source, EnvSpec):
        return lambda: source(**kwargs), False
    if cfg.time_limit is not None:
        kwargs["max_episode_steps"] = -1  # disable the id's own limit
    env_id = source.id
    return lambda: gym.make(env_id, disable_env_checker=True, **kwargs), False


def _checked(env: Any, name: str) -> AnyEnv:
    """Return `env` if it is a single-agent environment; otherwise raise a `ThespisError`."""
    if not isinstance(env, gym.Env) and (hasattr(env, "possible_agents") or hasattr(env, "agents")):
        raise ThespisError(
            f"{name} makes a PettingZoo environment, which has several agents; give a single-agent environment, e.g. "
            "one that plays the other agents' moves itself"
        )
    if not isinstance(env, gym.Env):
        raise ThespisError(f"{name} makes an object of {type(env).__name__}; return an instance of gymnasium.Env")
    return env


def _named(wrapper: Any) -> str:
    return wrapper if isinstance(wrapper, str) else locate(wrapper)
