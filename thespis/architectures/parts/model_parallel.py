"""How a learner and its shards are built, if its network is divided over several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.parts.group import build_exchange
from thespis.architectures.parts.policies import build_worker_network
from thespis.core.edges import ShardEdges
from thespis.core.system.cores import learner_threads

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import GroupEdges, Publish
    from thespis.core.program import Handle
    from thespis.exchange.protocol import Exchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source


def shard_edges(handle: Handle[roles.Shard]) -> ShardEdges:
    """The edges of a learner to one of its shards."""
    shard = roles.Shard
    return ShardEdges(
        load=handle.edge(shard.load),
        forward=handle.edge(shard.forward),
        backward=handle.edge(shard.backward),
        norm=handle.edge(shard.norm),
        gradients=handle.edge(shard.gradients),
        step=handle.edge(shard.step),
        collect=handle.edge(shard.collect),
    )


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
    shards: tuple[ShardEdges, ...],
) -> roles.ShardedLearner:
    """A learner that keeps its part of the network and commands its shards. `network`: whole."""
    from thespis.exchange.sharded_optimizer import ShardedOptimizer
    from thespis.exchange.shards import ShardGroup
    from thespis.networks.cuts import cut_network
    from thespis.networks.partition import StateLayout
    from thespis.networks.policy_runner import export_weights
    from thespis.roles.sharded_learner import RemoteParts

    whole = {f"weights/{name}": array for name, array in export_weights(network).items()}
    group_of_shards, cut = ShardGroup(ctx, shards), cut_network(network, cfg.model)
    own = cut.divide(group_of_shards)
    layout = StateLayout(cut.names, [name for name, _ in own.named_parameters()], cut.partitions)
    update = cfg.algorithm.build_update(own, ctx.rng("minibatches"))
    optimizer: ScheduledOptimizer = ShardedOptimizer(
        ctx, cfg.algorithm.optimizer, update.parameters, cfg.budget, group_of_shards, layout
    )
    exchange: Exchange = build_exchange(ctx, cfg, group, optimizer)
    remote = RemoteParts(group_of_shards, layout, layout.split(whole)[1])
    return roles.ShardedLearner(ctx, source, update, exchange, publish, publish_every=publish_every, remote=remote)
