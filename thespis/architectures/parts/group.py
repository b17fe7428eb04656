"""How several learners share their updates: the edges to their group, their exchange, and the aggregator of a node."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from thespis import roles
from thespis.architectures.parts.policies import build_worker_network
from thespis.core.edges import GroupEdges, NodeEdges, PreemptionEdges

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.learners_config import LearnersConfig
    from thespis.core.program import Handle
    from thespis.core.types import Version
    from thespis.exchange.protocol import Exchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.experience.sources import Preemption

GroupT = TypeVar("GroupT", "roles.LearnerGroup", "roles.NodeAggregator")
"""A role that combines the gradients of learners."""


def group_edges(handle: Handle[GroupT], role: type[GroupT], preempts: bool) -> GroupEdges:
    """The edges of a learner to its group, or to the aggregator of its node."""
    return GroupEdges(
        heartbeat=handle.edge(role.heartbeat),
        join=handle.edge(role.join),
        offer=handle.edge(role.offer),
        combine=handle.edge(role.combine),
        preemption=PreemptionEdges(handle.edge(role.ready), handle.edge(role.preempt)) if preempts else None,
    )


def node_edges(handle: Handle[roles.LearnerGroup], preempts: bool) -> NodeEdges:
    """The edges of the aggregator of a node to the group. It contributes for all of its learners at once."""
    group = roles.LearnerGroup
    entry = group_edges(handle, group, preempts)
    combine, leave = handle.edge(group.combine_node), handle.edge(group.leave)
    return NodeEdges(entry.heartbeat, entry.join, entry.offer, combine, leave, entry.preemption)


def build_aggregator(ctx: Context, cfg: Experiment, learners: LearnersConfig, group: NodeEdges) -> roles.NodeAggregator:
    """The aggregator of one node. It compresses what it sends to the group, if the learners' settings say so."""
    from thespis.exchange.all_reduce import build_compressor

    compressor = None
    if learners.compression.compresses:
        update = cfg.algorithm.build_update(build_worker_network(ctx, cfg), ctx.rng("minibatches"))
        shapes = [tuple(parameter.shape) for parameter in update.parameters]
        compressor = build_compressor(ctx, learners.compression, shapes)
    return roles.NodeAggregator(
        ctx,
        group,
        timeout=learners.learner_timeout,
        averages=cfg.algorithm.averages,
        clip=cfg.algorithm.optimizer.clip or math.inf,
        compressor=compressor,
    )


def build_exchange(ctx: Context, cfg: Any, group: GroupEdges | None, optimizer: ScheduledOptimizer) -> Exchange:
    """The exchange of a central learner: alone, or with its group."""
    from thespis.exchange.all_reduce import AllReduce
    from thespis.exchange.local import LocalExchange

    if group is None:
        return LocalExchange(optimizer)
    learners: LearnersConfig = cfg.group
    if learners.all_reduce == "group":
        return AllReduce(ctx, optimizer, group, learners.compression_of_learners)
    from thespis.exchange.collective import CollectiveAllReduce

    return CollectiveAllReduce(ctx, optimizer, group, cfg.algorithm.averages, learners.learner_timeout)


def build_preemption(ctx: Context, group: GroupEdges | None, version: Callable[[], Version]) -> Preemption | None:
    """Preemption for the source of one of several learners; None without `--preempt`."""
    from thespis.experience.sources import Preemption

    return Preemption(ctx, *group.preemption, version) if group and group.preemption else None
