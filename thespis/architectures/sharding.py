"""Builders around a sharded parameter server: servers, and the learners that push gradients to all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from thespis import roles
from thespis.architectures.builders import (
    ReplayShards,
    add_replay,
    build_stepper,
    environments,
    evaluator,
    exploring_actor,
    return_discount,
    worker_network,
)
from thespis.core.bounds import ShardCount
from thespis.core.errors import ThespisError
from thespis.core.program import Handle, Placement, Program

if TYPE_CHECKING:
    from thespis.algorithms.updates.update import Update
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Draw, InsertStream, Join, Prioritise, PullSlice, Push
    from thespis.exchange.push_pull import PushPull
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class ServersConfig:
    """How parameters are divided among servers, and how gradients travel to them."""

    shards: ShardCount = 1
    """Servers the parameters are divided among, each with its own optimiser state and version (Gorila's paper: 31)."""
    gradient_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """How gradients travel; the halves need half the bytes."""


def refuse_statistics(cfg: Experiment) -> None:
    """Refuse a network with running statistics: servers hold parameters alone."""
    if cfg.algorithm.network.normalize_observations:
        raise ThespisError(
            "--network.normalize-observations needs one learner that sees all observations, and here each learner "
            "sees its own; leave it off, or wrap the environment"
        )


class Servers:
    """The shards of a parameter server, each with a slice of the parameters, and the edges to all of them."""

    def __init__(self, handles: Sequence[Handle[roles.ParameterServer]]) -> None:
        self.joins: tuple[Join, ...] = tuple(each.edge(roles.ParameterServer.join) for each in handles)
        self.pushes: tuple[Push, ...] = tuple(each.edge(roles.ParameterServer.push) for each in handles)
        self.pulls: tuple[PullSlice, ...] = tuple(each.edge(roles.ParameterServer.pull) for each in handles)


def add_servers(p: Program, cfg: Any, **rule: Any) -> Servers:
    """`rule`: by which gradients take effect."""
    settings = {"optimizer": cfg.algorithm.optimizer, "budget": cfg.budget, **rule}
    place = p.at(restarts=3)
    return Servers([place.add("server", roles.ParameterServer, **settings) for _ in range(cfg.servers.shards)])


def build_exchange(
    ctx: Context,
    cfg: Any,
    network: PolicyNetwork,
    joins: Sequence[Join],
    pushes: Sequence[Push],
    *,
    by_steps: bool,
) -> PushPull:
    """The learner's side of the gradient edges to all servers."""
    from thespis.exchange.push_pull import PushPull

    clip, dtype = cfg.algorithm.optimizer.clip, cfg.servers.gradient_dtype
    return PushPull(ctx, network, joins, pushes, clip=clip, dtype=dtype, by_steps=by_steps)


def acting_learner(
    ctx: Context, cfg: Experiment, network: PolicyNetwork, exchange: Any, cut: bool = False
) -> roles.Learner:
    """A learner that steps its own environments with the network it trains, and holds no weights for others.

    With an off-policy algorithm it acts on while its gradients are under way. `cut`: unrolls end with the episode.
    """
    from thespis.experience.windows import Windows

    algorithm = cfg.algorithm
    source = Windows(
        ctx,
        environments(ctx, cfg, cfg.envs_per_actor),
        algorithm.build_stepper(network, ctx.rng("policy")),
        algorithm.items.unroll_length,
        lambda: exchange.version,
        cut=cut,
        ahead=algorithm.off_policy,
        return_discount=return_discount(cfg),
    )
    update = algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, exchange, None)


def build_worker(
    ctx: Context, cfg: Experiment, joins: Sequence[Join], pushes: Sequence[Push], cut: bool = False
) -> roles.Learner:
    """A worker: it acts, differentiates and pushes to all servers. `cut`: unrolls end with the episode."""
    network = worker_network(ctx, cfg)
    exchange = build_exchange(ctx, cfg, network, joins, pushes, by_steps=cfg.algorithm.averages)
    return acting_learner(ctx, cfg, network, exchange, cut)


# -- learners with a replay -----------------------------------------------------------------------


class Outliers(NamedTuple):
    """Gradients whose loss is so many standard deviations above its mean over `memory` batches are discarded."""

    deviations: float
    memory: int


def build_replay_worker(
    ctx: Context,
    cfg: Any,
    samples: Sequence[Draw],
    prioritise: Sequence[Prioritise],
    joins: Sequence[Join],
    pushes: Sequence[Push],
    sharers: int,
    outliers: Outliers | None,
) -> roles.Learner:
    """A learner that draws from a replay and pushes to all servers. `sharers`: learners that share its replay."""
    from thespis.algorithms.updates.outliers import OutlierFilter
    from thespis.experience.sources import Draws

    network, items = worker_network(ctx, cfg), cfg.algorithm.items
    exchange = build_exchange(ctx, cfg, network, joins, pushes, by_steps=False)
    # The answer to a push has the servers' parameters, so a copy made after one is a copy of these.
    update: Update = cfg.algorithm.build_update(
        network, ctx.rng("minibatches"), lambda: exchange.version.update // cfg.servers.shards
    )
    if outliers is not None:
        update = OutlierFilter(update, outliers.deviations, outliers.memory)
    source = Draws(ctx, samples, items.batch, items.batches_per_draw, prioritise, sharers)
    return roles.Learner(ctx, source, update, exchange, None)


def build_sharded_actor(
    ctx: Context, cfg: Experiment, insert: InsertStream, pulls: Sequence[PullSlice], replays: int
) -> roles.Actor:
    """An actor on the servers' parameters. `replays`: how many there are, all filled alike."""
    return exploring_actor(ctx, cfg, insert, sharded_policy(ctx, cfg, pulls), replays)


def add_replay_worker(
    place: Placement, cfg: Any, replay: ReplayShards, servers: Servers, sharers: int, outliers: Outliers | None
) -> None:
    place.add(
        "learner",
        build_replay_worker,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        joins=servers.joins,
        pushes=servers.pushes,
        sharers=sharers,
        outliers=outliers,
    )


def add_sharded_actor(place: Placement, cfg: Any, replay: ReplayShards, servers: Servers, replays: int) -> None:
    place = dataclasses.replace(place, counts_as_actor=True)
    place.add("actor", build_sharded_actor, cfg, insert=replay.insert(0), pulls=servers.pulls, replays=replays)


def add_bundle(p: Program, cfg: Any, bundle: int, servers: Servers, outliers: Outliers | None = None) -> None:
    """An actor, a replay and a learner in one process."""
    place = p.at(process=f"bundle-{bundle}", colocate=f"bundle {bundle}", restarts=3)
    replay = add_replay(p, cfg, place, actors=1)
    add_replay_worker(place, cfg, replay, servers, 1, outliers)
    add_sharded_actor(place, cfg, replay, servers, cfg.actors)


# -- policies on the servers' parameters ----------------------------------------------------------


def sharded_policy(ctx: Context, cfg: Experiment, pulls: Sequence[PullSlice]) -> roles.LocalPolicy:
    """A policy on parameters that it pulls from all shards of a parameter server."""
    from thespis.exchange.push_pull import PullAll

    stepper = build_stepper(ctx, cfg)
    return roles.LocalPolicy(ctx, stepper, PullAll(ctx, stepper.network, pulls))


def add_sharded_evaluator(p: Program, cfg: Experiment, pulls: Sequence[PullSlice]) -> None:
    """An evaluator that pulls from all shards of a parameter server, unless it is switched off."""
    if cfg.eval_episodes:
        p.at(cpus=0, restarts=3).add("evaluator", build_sharded_evaluator, cfg, pulls=pulls)


def build_sharded_evaluator(ctx: Context, cfg: Experiment, pulls: Sequence[PullSlice]) -> roles.Evaluator:
    return evaluator(ctx, cfg, lambda: sharded_policy(ctx, cfg, pulls))
