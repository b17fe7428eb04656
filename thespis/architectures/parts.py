"""Pieces that the builders of several architectures share: environments, networks and policies from a config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from thespis.algorithms.actor_critic import VTraceUpdate
from thespis.config import (
    DPGNetworkConfig,
    EvolvedNetworkConfig,
    NetworkConfig,
    QNetworkConfig,
    ScoredNetworkConfig,
    Spec,
    resolve,
)
from thespis.envs.autoreset import Environments
from thespis.envs.make import describe, make
from thespis.envs.spaces import Spaces, action_row
from thespis.experience.seats import Seats
from thespis.experience.windows import Windows
from thespis.networks.acting import Stepper
from thespis.networks.dpg import DPGNetwork
from thespis.networks.evolved import Evolved
from thespis.networks.init import init_network
from thespis.networks.policies import ActorCritic, PolicyNetwork
from thespis.networks.q import QNetwork
from thespis.networks.scored import ScoredNetwork
from thespis.roles.learner import Exchange, Learner
from thespis.roles.policy import LocalPolicy, Pull
from thespis.runtime.context import Context
from thespis.types import Version

if TYPE_CHECKING:
    from thespis.architectures.parameter_server import Workers
    from thespis.exchange.push_pull import PullSlice


class HasEnv(Protocol):
    @property
    def env(self) -> Spec: ...


class SharedExchange(Exchange, Protocol):
    """An exchange with parameters that others change too, so that their version is its own affair."""

    @property
    def version(self) -> Version: ...


class HasNetwork(HasEnv, Protocol):
    @property
    def network(self) -> NetworkConfig: ...
    @property
    def actors(self) -> int: ...


def environments(ctx: Context, cfg: HasEnv, number: int) -> Environments:
    """The configured environments, telling the runtime where they are so that a hang can be named."""
    return make(resolve(cfg.env), number, on_env=ctx.locate)


def network(cfg: NetworkConfig, spaces: Spaces, seed: int) -> PolicyNetwork:
    """The configured network, initialised from `seed` alone."""
    observations, actions = spaces.observation_space, spaces.action_space

    def build() -> PolicyNetwork:
        if cfg.factory:
            made: PolicyNetwork = resolve(cfg.factory)(observations, actions)
            return made
        if isinstance(cfg, QNetworkConfig):
            return QNetwork(observations, actions, cfg)
        if isinstance(cfg, DPGNetworkConfig):
            return DPGNetwork(observations, actions, cfg)
        if isinstance(cfg, ScoredNetworkConfig):
            return ScoredNetwork(observations, actions, cfg)
        if isinstance(cfg, EvolvedNetworkConfig):
            return Evolved(observations, actions, cfg)
        return ActorCritic(observations, actions, cfg)

    return init_network(build, seed)


def local_policy(ctx: Context, cfg: HasNetwork, pull: Pull, ahead: bool = False) -> LocalPolicy:
    """A policy that pulls its weights."""
    return LocalPolicy(ctx, stepper(ctx, cfg), pull, ahead)


def stepper(ctx: Context, cfg: HasNetwork) -> Stepper:
    """What acts, on one thread: the actors share the machine, each has a core at most."""
    torch.set_num_threads(1)
    made = network(cfg.network, describe(resolve(cfg.env)), seed=0)
    return Stepper(made, ctx.rng("policy"))


def learner_network(ctx: Context, cfg: HasNetwork, in_turns: bool = False) -> PolicyNetwork:
    """The network to train, on the cores that the actors leave: all of them, if actors and learner work in turns."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores if in_turns else max(1, cores - cfg.actors))
    return network(cfg.network, describe(resolve(cfg.env)), ctx.identity.run_seed)


def worker_network(ctx: Context, cfg: HasNetwork) -> PolicyNetwork:
    """The network of one of many workers, on one thread each; all of them start from the same weights."""
    torch.set_num_threads(1)
    return network(cfg.network, describe(resolve(cfg.env)), ctx.identity.run_seed)


def pulling_policy(ctx: Context, cfg: HasNetwork, pulls: Sequence[PullSlice]) -> LocalPolicy:
    """A policy that only acts, on parameters pulled from all shards of a parameter server."""
    from thespis.exchange.push_pull import PullAll

    torch.set_num_threads(1)
    made = network(cfg.network, describe(resolve(cfg.env)), seed=0)
    return LocalPolicy(ctx, Stepper(made, ctx.rng("policy")), PullAll(ctx, made, pulls))


def acting_learner(ctx: Context, cfg: Workers, made: PolicyNetwork, exchange: SharedExchange) -> Learner:
    """A learner that steps its own environments with the network it trains, and holds no weights for others."""
    source = Windows(
        ctx,
        environments(ctx, cfg, cfg.envs_per_actor),
        Stepper(made, ctx.rng("policy")),
        cfg.unroll_length,
        lambda: exchange.version,
        cut=cfg.cut_windows,
        ahead=cfg.correction,
        return_discount=cfg.discount if cfg.reward.normalize else None,
    )
    return Learner(ctx, source, VTraceUpdate(made, cfg), exchange, None, cfg.budget)


def serving_seats(cfg: HasEnv, acting: Stepper, length: int, return_discount: float | None) -> Seats:
    """Where trajectories of others are put together, for those that `acting` acts for."""
    no_action = action_row(describe(resolve(cfg.env)).action_space)
    return Seats(length, acting.initial_state, no_action, return_discount)
