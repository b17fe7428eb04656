"""Builders of central learners: alone, or several that share the work as a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.aggregators import add_aggregator
from thespis.architectures.builders import (
    ReplayShards,
    add_replay,
    build_exchange,
    build_replay_actor,
    build_worker_network,
)
from thespis.architectures.model_parallel import ShardWiring, build_sharded_learner
from thespis.architectures.pulled_weights import ActorWeights, add_actor_weights
from thespis.core.config import Rounds
from thespis.core.edges import GroupEdges, NodeEdges, PreemptionEdges
from thespis.core.learners_config import LearnersConfig, ParallelConfig
from thespis.core.program import Handle, Placement, Program
from thespis.core.system.cores import learner_threads

if TYPE_CHECKING:
    from thespis.algorithms.r2d2 import Replayed
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Draw, Prioritise, Publish, Sample
    from thespis.core.types import Version
    from thespis.experience.sources import Preemption
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source


def add_group(p: Program, cfg: Experiment, learners: LearnersConfig, preempt: float = 1.0) -> list[GroupEdges | None]:
    """Add the group of several learners, in its own process, so that it outlives each of them.

    Returns the edges of each learner: to the group, or to the aggregator of its node. They are None for a single
    learner. `preempt`: see `PreemptionConfig`.
    """
    if learners.learners == 1:
        return [None]
    if learners.compression.compresses:
        p.notes.append(learners.compression.describe())
    if learners.all_reduce != "group":
        p.notes.append(f"gradients: {learners.all_reduce} adds them up between the learners, outside the edges")
    handle: Handle[roles.LearnerGroup] = p.at(colocate="group", cpus=0, restarts=3).add(
        "group",
        roles.LearnerGroup,
        learners=learners.learners,
        timeout=learners.learner_timeout,
        averages=cfg.algorithm.averages,
        preempt_share=preempt,
        per_node=learners.learners_per_node or 1,
        compression=learners.compression,
    )
    group = roles.LearnerGroup
    entry = handle.edge(group.heartbeat), handle.edge(group.join), handle.edge(group.offer)
    preemption = PreemptionEdges(handle.edge(group.ready), handle.edge(group.preempt)) if preempt != 1.0 else None
    if learners.learners_per_node is None:
        combine = handle.edge(group.combine) if learners.all_reduce == "group" else handle.edge(group.agree)
        return [GroupEdges(*entry, combine, preemption)] * learners.learners
    above = NodeEdges(*entry, handle.edge(group.combine_node), handle.edge(group.leave), preemption)
    return [edges for node in learners.nodes for edges in add_aggregator(p, cfg, learners, node, above)]


def build_preemption(ctx: Context, group: GroupEdges | None, version: Callable[[], Version]) -> Preemption | None:
    """Preemption for the source of one of several learners; None without `--preempt`."""
    from thespis.experience.sources import Preemption

    return Preemption(ctx, *group.preemption, version) if group and group.preemption else None


def build_learner_network(
    ctx: Context, cfg: Any, in_turns: bool = False, group: GroupEdges | None = None
) -> PolicyNetwork:
    """A learner's network; sets the number of torch threads to its share of the cores that the actors leave.

    `in_turns`: actors and learner alternate, so the learner may use all cores. A small network uses one thread.
    `group`: that of the learner, if several share the cores.
    """
    import torch

    made = build_worker_network(ctx, cfg)
    parameters = sum(parameter.numel() for parameter in made.parameters())
    processes = (cfg.group.learners if group else 1) * getattr(cfg, "model", ParallelConfig()).processes
    torch.set_num_threads(learner_threads(parameters, 0 if in_turns else cfg.actors, processes))
    return made


def build_central_learner(
    ctx: Context,
    cfg: Any,
    source: Source,
    network: PolicyNetwork,
    publish: Publish,
    publish_every: int = 1,
    group: GroupEdges | None = None,
    shards: ShardWiring = (),
) -> roles.Learner:
    """A learner that applies its own gradients, or those of its group, and publishes the weights.

    With `shards` it keeps a part of the network.
    """
    if shards:
        return build_sharded_learner(ctx, cfg, source, network, publish, publish_every, group, shards)
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer

    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    optimizer = ScheduledOptimizer(ctx, cfg.algorithm.optimizer, update.parameters, cfg.budget)
    return roles.Learner(ctx, source, update, build_exchange(ctx, cfg, group, optimizer), publish, publish_every)


def build_queue_learner(
    ctx: Context,
    cfg: Experiment,
    sample: Sample,
    publish: Publish,
    unrolls: int,
    publish_every: int = 1,
    group: GroupEdges | None = None,
    shards: ShardWiring = (),
) -> roles.Learner:
    """A learner that takes `unrolls` unrolls from a queue per update.

    If the algorithm learns from on-policy rounds, it waits for unrolls of its current version, and so alternates with
    the actors.
    """
    from thespis.experience.sources import OnPolicyRounds, QueueSource

    rounds = cfg.algorithm.items.KIND == Rounds.KIND
    preemption = build_preemption(ctx, group, lambda: learner.version)
    source: Source = QueueSource(ctx, sample, unrolls, preemption)
    if rounds:
        source = OnPolicyRounds(ctx, sample, unrolls, lambda: learner.version, preemption)
    network = build_learner_network(ctx, cfg, in_turns=rounds, group=group)
    learner = build_central_learner(ctx, cfg, source, network, publish, publish_every, group, shards)
    return learner


def add_queue_learner(
    place: Placement,
    cfg: Any,
    sample: Sample,
    publish: Publish,
    unrolls: int,
    group: GroupEdges | None,
    every: int = 1,
    shards: ShardWiring = (),
) -> None:
    """Add one of `cfg.group.learners` learners. `sample` is its edge to a queue, from which it takes `unrolls`.

    It publishes every `every` updates. `shards`: of this learner; see `add_shards`.
    """
    replace(place, replicated=True).add(
        "learner",
        build_queue_learner,
        cfg,
        sample=sample,
        publish=publish,
        unrolls=unrolls,
        publish_every=every,
        group=group,
        shards=shards,
    )


def build_replay_learner(
    ctx: Context,
    cfg: Experiment,
    samples: Sequence[Draw],
    prioritise: Sequence[Prioritise],
    publish: Publish,
    publish_every: int,
    group: GroupEdges | None = None,
) -> roles.Learner:
    """A learner that samples batches from a replay, or in equal parts from its shards."""
    from thespis.experience.sources import ReplaySource

    items: Replayed = cfg.algorithm.items
    source = ReplaySource(ctx, samples, items.batch, items.batches_per_draw, prioritise, divide=not group)
    network = build_learner_network(ctx, cfg, group=group)
    return build_central_learner(ctx, cfg, source, network, publish, publish_every, group)


def add_replay_learner(
    place: Placement, cfg: Any, replay: ReplayShards, publish: Publish, group: GroupEdges | None
) -> None:
    """Add one of `cfg.group.learners` learners. It samples from the replay and sends it new priorities."""
    replace(place, replicated=True).add(
        "learner",
        build_replay_learner,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        publish=publish,
        publish_every=cfg.publish_every,
        group=group,
    )


# -- the roles of several learners, each with its own replay and weight store -------------------------


def add_own_replays(p: Program, cfg: Any) -> list[ReplayShards]:
    """Add the replay of each learner, or its shards."""
    learners: LearnersConfig = cfg.group
    process = "storage" if cfg.algorithm.items.replay.shards == 1 else None
    places = [learners.place(p, process, learner) for learner in learners.indices]
    actors = [learners.actors_of(learner, cfg.actors) for learner in learners.indices]
    return [add_replay(p, cfg, place, fed, len(places)) for place, fed in zip(places, actors, strict=True)]


def add_own_weights(p: Program, cfg: Any) -> list[ActorWeights]:
    """Add the weight store of each learner, in the process of its replay."""
    return [add_actor_weights(cfg.group.place(p, "storage", learner), cfg) for learner in cfg.group.indices]


def add_replay_learners(p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[ActorWeights]) -> None:
    """Add the learners, and their group if there are several."""
    groups = zip(replays, stores, add_group(p, cfg, cfg.group), strict=True)
    for learner, (replay, store, group) in enumerate(groups):
        add_replay_learner(cfg.group.place(p, None, learner), cfg, replay, store.publish, group)


def add_replay_actors(p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[ActorWeights]) -> None:
    """Add all actors. Each has a local policy, and the replay and the weight store of one learner."""
    place, memories = p.at(restarts=3, counts_as_actor=True), sum(len(replay.handles) for replay in replays)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        insert, pull = replays[learner].insert(actor), stores[learner].pull
        place.add("actor", build_replay_actor, cfg, insert=insert, pull=pull, replays=memories)
