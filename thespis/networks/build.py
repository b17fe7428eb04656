"""Builds a network from its settings: the algorithm's own class, or a user's factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from thespis.core.errors import ThespisError
from thespis.core.user_code import resolve
from thespis.networks.init import init_network

if TYPE_CHECKING:
    from thespis.core.config import NetworkConfig
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def build_network(
    network_class: Callable[..., PolicyNetwork], cfg: NetworkConfig, spaces: Spaces, seed: int
) -> PolicyNetwork:
    """Build the configured network; its weights depend on `seed` only."""
    observations, actions = spaces.observation_space, spaces.action_space

    def build() -> PolicyNetwork:
        return _custom(cfg, spaces) if cfg.factory else network_class(observations, actions, cfg)

    return init_network(build, seed)


def _custom(cfg: NetworkConfig, spaces: Spaces) -> PolicyNetwork:
    """Call a user's factory, which may take the network's settings as a third argument."""
    factory = resolve(cfg.factory)
    if not callable(factory):
        raise ThespisError(f"--network.factory is {cfg.factory!r}; give file.py::function or module::function")
    arguments = (spaces.observation_space, spaces.action_space, cfg)
    made: PolicyNetwork = factory(*arguments[: 3 if _takes_three(factory) else 2])
    if not isinstance(made, torch.nn.Module):
        raise ThespisError(
            f"--network.factory {cfg.factory!r} returns a {type(made).__name__}; return a torch.nn.Module"
        )
    return made


def _takes_three(factory: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some builtins have no signature
        return False
    return sum(each.kind in _POSITIONAL and each.default is each.empty for each in parameters) >= 3
