"""Builders of the aggregators between the learners of a node and their group on another node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from thespis import roles
from thespis.architectures.builders import build_worker_network
from thespis.core.edges import GroupEdges, NodeEdges, PreemptionEdges
from thespis.core.learners_config import RESTARTS, LearnersConfig
from thespis.core.program import Program

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context


def add_aggregator(
    p: Program, cfg: Experiment, learners: LearnersConfig, node: range, group: NodeEdges
) -> list[GroupEdges | None]:
    """Add the aggregator of the learners `node`, in its own process on their node; returns the edges of each."""
    place = p.at(colocate=learners.node(node.start), cpus=0, restarts=RESTARTS)
    handle = place.add("aggregator", build_aggregator, cfg, learners, group=group)
    own = roles.NodeAggregator
    edges = GroupEdges(
        heartbeat=handle.edge(own.heartbeat),
        join=handle.edge(own.join),
        offer=handle.edge(own.offer),
        combine=handle.edge(own.combine),
        preemption=PreemptionEdges(handle.edge(own.ready), handle.edge(own.preempt)) if group.preemption else None,
    )
    return [edges] * len(node)


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
