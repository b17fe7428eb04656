"""Builders of central learners: alone, or several that share the work as a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.architectures.builders import (
    ReplayShards,
    Weights,
    add_replay,
    add_weights,
    build_replay_actor,
    build_worker_network,
)
from thespis.architectures.model_parallel import ShardWiring, build_sharded_learner
from thespis.core.bounds import Bounds, Count, CountOrZero, Positive, RoleCount
from thespis.core.compression_config import CompressionConfig
from thespis.core.config import Rounds, Unrolls
from thespis.core.edges import GroupEdges, PreemptionEdges
from thespis.core.errors import ThespisError
from thespis.core.parallel_config import ParallelConfig
from thespis.core.program import Handle, Placement, Program
from thespis.core.settings import inline
from thespis.core.system.cores import learner_threads

if TYPE_CHECKING:
    from thespis.algorithms.r2d2 import Replayed
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Draw, Prioritise, Publish, Sample
    from thespis.core.types import Version
    from thespis.exchange.protocol import Exchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.experience.sources import Preemption
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source


_RESTARTS = 100
"""Restarts of each of several learners. Many are harmless, because the others continue meanwhile."""


@dataclass(frozen=True)
class LearnersConfig:
    """Several learners. Each takes batches from its own part of the actors; all make one update together."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("learners",)

    learners: RoleCount = 1
    """Number of learners. Each computes gradients of its own batch, and all apply the mean. An update then learns from
    --learners times as many steps."""
    learner_timeout: Positive = 3.0
    """Continue without a learner that sends no heartbeat for N seconds. It must be longer than the computation of one
    gradient."""
    compression: CompressionConfig = inline(CompressionConfig)

    def check(self, cfg: Experiment, equal: bool = False) -> None:
        """Refuse learners without actors, and algorithms whose update cannot be divided.

        `equal`: refuse also learners with different numbers of actors, for on-policy rounds of equal size.
        """
        if self.learners == 1:
            if self.compression.compresses:
                raise ThespisError(
                    f"--gradients {self.compression.gradients} is for gradients that learners send to each other, and "
                    "one learner sends none; give --learners 2 or more, or leave it off"
                )
            return
        if self.learners > cfg.actors:
            raise ThespisError(
                f"--learners is {self.learners}, but there are only {cfg.actors} actors to feed them; give at least "
                f"--actors {self.learners}"
            )
        if equal and cfg.actors % self.learners:
            raise ThespisError(
                f"{cfg.actors} actors cannot be divided equally among --learners {self.learners}; give a multiple of "
                f"{self.learners} --actors"
            )
        reason = cfg.algorithm.indivisible
        if reason:
            raise ThespisError(f"--algorithm {cfg.algorithm.name} needs a single learner, because {reason}")

    @property
    def indices(self) -> range:
        """The indices of the learners."""
        return range(self.learners)

    def name(self, name: str, index: int) -> str:
        """The name of a learner's process or node group: `name` itself if there is one learner."""
        return name if self.learners == 1 else f"{name}-{index}"

    def learner_of(self, actor: int) -> int:
        """The index of the learner that an actor feeds."""
        return actor % self.learners

    def actors_of(self, learner: int, actors: int) -> int:
        """How many of all actors feed a learner."""
        return len(range(learner, actors, self.learners))

    def place(self, p: Program, process: str | None, index: int) -> Placement:
        """The placement of a learner or of its services. `process` is numbered if there are several learners."""
        name = None if process is None else self.name(process, index)
        restarts = 3 if self.learners == 1 else _RESTARTS
        return p.at(process=name, colocate=self.name("learner", index), restarts=restarts)


@dataclass(frozen=True)
class ReplayLearnersConfig(LearnersConfig):
    """Several learners, each with its own replay: an equal part of --replay.capacity."""

    FIXED: ClassVar[tuple[str, ...]] = ("learners",)  # a saved replay belongs to one of this many learners


@dataclass(frozen=True)
class QueueConfig:
    """The queue of unrolls between actors and a learner, and the delay of its weights."""

    batch_unrolls: Count = 1
    """Batch size in unrolls; each unroll holds all environments of one actor (IMPALA's paper: 32 unrolls of one
    environment)."""
    queue_capacity: Count = 1
    """Capacity of the queue in unrolls. A larger queue increases lag."""
    forced_lag: CountOrZero = 0
    """Delay weights by N updates, to study lag."""

    def check(self, cfg: Experiment) -> None:
        """Refuse these settings for an algorithm without a queue of unrolls."""
        if self != QueueConfig() and cfg.algorithm.items.KIND != Unrolls.KIND:
            raise ThespisError(
                f"{cfg.algorithm.name} has no queue of unrolls; leave off --batch-unrolls, --queue-capacity and "
                "--forced-lag"
            )


@dataclass(frozen=True)
class PreemptionConfig:
    """What several learners do when some of them have no whole batch yet."""

    preempt: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """When this share of the learners has a whole batch, the others use the unrolls that they have, at least one. With
    1, all wait for whole batches (DD-PPO: 0.6)."""

    def check(self, cfg: Experiment, learners: int, unrolls: int, environments: int) -> None:
        """Refuse preemption that can never happen. `unrolls`: of a batch. `environments`: of an unroll."""
        if self.preempt == 1.0:
            return
        if cfg.algorithm.items.KIND not in (Unrolls.KIND, Rounds.KIND):
            raise ThespisError(f"--preempt is for batches from a queue, but {cfg.algorithm.name} learns from a replay")
        if learners == 1:
            raise ThespisError("--preempt is for several learners that wait for each other; give --learners")
        if math.ceil(self.preempt * learners - 1e-9) == learners:
            most = math.floor(100 * (learners - 1) / learners) / 100
            raise ThespisError(
                f"--preempt {self.preempt:g} of {learners} learners means all of them; give at most {most:g}"
            )
        if unrolls == 1:
            raise ThespisError("--preempt divides batches, but here a batch is a single unroll; use larger batches")
        cfg.algorithm.check_batch(environments)


def add_group(p: Program, cfg: Experiment, learners: LearnersConfig, preempt: float = 1.0) -> GroupEdges | None:
    """Add the group of several learners, in its own process, so that it outlives each of them.

    Returns None for a single learner. `preempt`: see `PreemptionConfig`.
    """
    if learners.learners == 1:
        return None
    if learners.compression.compresses:
        p.notes.append(learners.compression.describe())
    handle: Handle[roles.LearnerGroup] = p.at(colocate="group", cpus=0, restarts=3).add(
        "group",
        roles.LearnerGroup,
        learners=learners.learners,
        timeout=learners.learner_timeout,
        averages=cfg.algorithm.averages,
        preempt_share=preempt,
        compression=learners.compression,
    )
    group = roles.LearnerGroup
    return GroupEdges(
        heartbeat=handle.edge(group.heartbeat),
        join=handle.edge(group.join),
        offer=handle.edge(group.offer),
        combine=handle.edge(group.combine),
        preemption=PreemptionEdges(handle.edge(group.ready), handle.edge(group.preempt)) if preempt != 1.0 else None,
    )


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
    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, build_exchange(ctx, cfg, update, group), publish, publish_every)


def build_exchange(
    ctx: Context, cfg: Any, update: Any, group: GroupEdges | None, optimizer: ScheduledOptimizer | None = None
) -> Exchange:
    """The exchange of a central learner: alone, or with its group. `optimizer`: that of a learner with shards."""
    from thespis.exchange.all_reduce import AllReduce
    from thespis.exchange.local import LocalExchange

    settings = cfg.algorithm.optimizer
    if not group:
        return LocalExchange(ctx, settings, update.parameters, cfg.budget, optimizer)
    return AllReduce(ctx, settings, update.parameters, cfg.budget, group, cfg.group.compression, optimizer)


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


def add_own_weights(p: Program, cfg: Any) -> list[Weights]:
    """Add the weight store of each learner, in the process of its replay."""
    return [add_weights(cfg.group.place(p, "storage", learner)) for learner in cfg.group.indices]


def add_replay_learners(p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[Weights]) -> None:
    """Add the learners, and their group if there are several."""
    group = add_group(p, cfg, cfg.group)
    for learner, (replay, store) in enumerate(zip(replays, stores, strict=True)):
        add_replay_learner(cfg.group.place(p, None, learner), cfg, replay, store.publish, group)


def add_replay_actors(p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[Weights]) -> None:
    """Add all actors. Each has a local policy, and the replay and the weight store of one learner."""
    place, memories = p.at(restarts=3, counts_as_actor=True), sum(len(replay.handles) for replay in replays)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        insert, pull = replays[learner].insert(actor), stores[learner].pull
        place.add("actor", build_replay_actor, cfg, insert=insert, pull=pull, replays=memories)
