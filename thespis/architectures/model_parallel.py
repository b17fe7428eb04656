"""Builders of learners whose network is divided over several processes: a learner and its shards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.builders import build_exchange, build_worker_network
from thespis.core.edges import GroupEdges, ShardEdges
from thespis.core.errors import ThespisError
from thespis.core.program import Handle, Placement
from thespis.core.system.cores import learner_threads

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Publish
    from thespis.envs.spaces import Spaces
    from thespis.exchange.protocol import Exchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source


ShardWiring = tuple[ShardEdges, ...]
"""The edges from a learner to its shards; empty for a learner with a whole network."""


def add_shards(place: Placement, cfg: Any) -> ShardWiring:
    """Add the shards of a learner, each in its own process. `place`: that of the learner, on whose node they are."""
    if not cfg.model.divides:
        return ()
    edges: list[ShardEdges] = []
    own, shard = replace(place, process=None, cpus=1.0, replicated=False), roles.Shard
    for process in range(1, cfg.model.processes):
        handle: Handle[roles.Shard] = own.add("shard", build_shard, cfg, process=process)
        edges.append(
            ShardEdges(
                load=handle.edge(shard.load),
                forward=handle.edge(shard.forward),
                backward=handle.edge(shard.backward),
                norm=handle.edge(shard.norm),
                gradients=handle.edge(shard.gradients),
                step=handle.edge(shard.step),
                collect=handle.edge(shard.collect),
            )
        )
    return tuple(edges)


def validate_parallel(cfg: Any, spaces: Spaces) -> None:
    """Refuse an algorithm or a network that cannot be divided."""
    if not cfg.model.divides:
        return
    from thespis.networks.cuts import why_whole

    flag = f"--parallel {cfg.model.parallel}"
    if not cfg.algorithm.SHARDABLE:
        raise ThespisError(f"{flag}: --algorithm {cfg.algorithm.name} needs its network in one process; leave it off")
    reason = why_whole(cfg.algorithm.build_network(spaces, seed=0), cfg.model)
    if reason:
        raise ThespisError(f"{flag} cannot divide this network: {reason}")


def build_shard(ctx: Context, cfg: Any, process: int) -> roles.Shard:
    """The shard of a learner that is process number `process` of its network."""
    import torch

    from thespis.networks.cuts import cut_network

    network = build_worker_network(ctx, cfg)
    size = sum(parameter.numel() for parameter in network.parameters())
    torch.set_num_threads(learner_threads(size, cfg.actors, cfg.group.learners * cfg.model.processes))
    blocks, parameters = cut_network(network, cfg.model).parts(process)
    return roles.Shard(ctx, blocks, parameters, cfg.algorithm.optimizer)


def build_sharded_learner(
    ctx: Context,
    cfg: Any,
    source: Source,
    network: PolicyNetwork,
    publish: Publish,
    publish_every: int,
    group: GroupEdges | None,
    shards: ShardWiring,
) -> roles.ShardedLearner:
    """A learner that keeps its part of the network and commands its shards. `network`: whole."""
    from thespis.exchange.sharded_optimizer import ShardedOptimizer
    from thespis.exchange.shards import ShardGroup
    from thespis.networks.cuts import cut_network
    from thespis.networks.partition import StateLayout
    from thespis.networks.policy_runner import export_weights

    whole = {f"weights/{name}": array for name, array in export_weights(network).items()}
    remote, cut = ShardGroup(ctx, shards), cut_network(network, cfg.model)
    own = cut.divide(remote)
    layout = StateLayout(cut.names, [name for name, _ in own.named_parameters()], cut.partitions)
    update = cfg.algorithm.build_update(own, ctx.rng("minibatches"))
    optimizer: ScheduledOptimizer = ShardedOptimizer(
        ctx, cfg.algorithm.optimizer, update.parameters, cfg.budget, remote, layout
    )
    exchange: Exchange = build_exchange(ctx, cfg, group, optimizer)
    pieces = layout.split(whole)[1]
    return roles.ShardedLearner(ctx, source, update, exchange, publish, publish_every, remote, layout, pieces)
