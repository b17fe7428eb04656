"""How a central learner is built: its network, its source of batches and its exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.parts.group import build_exchange, build_preemption
from thespis.architectures.parts.model_parallel import build_sharded_learner
from thespis.architectures.parts.policies import build_worker_network
from thespis.core.config import Rounds
from thespis.core.learners_config import ParallelConfig
from thespis.core.system.cores import learner_threads

if TYPE_CHECKING:
    from thespis.architectures.parts.replay import Replayed
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Draw, GroupEdges, Prioritise, Publish, Sample, ShardEdges
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source


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
    shards: tuple[ShardEdges, ...] = (),
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
    shards: tuple[ShardEdges, ...] = (),
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
