"""SEED RL (Espeholt et al., 2020, arXiv:1910.06591): actors only step environments; one process infers and learns.

actor xN --observations--> inference --unroll--> queue or replay --batch--> learner
actor xN <----actions----- inference <--weights, within the process-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures import builders
from thespis.core.bounds import Count
from thespis.core.config import Experiment, Rounds, Sequences, Unrolls
from thespis.core.edges import GroupEdges, Publish, UnrollStorage
from thespis.core.errors import ThespisError
from thespis.core.learners_config import (
    InferenceConfig,
    ParallelConfig,
    PreemptionConfig,
    QueueConfig,
    ReplayLearnersConfig,
)
from thespis.core.program import Placement, Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """SEED RL with V-trace or APPO (queue), R2D2 (replay buffer), or PPO or TRPO (on-policy rounds)."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    algorithm: Algorithm[Unrolls | Rounds | Sequences] = chosen(VTrace)
    inference: InferenceConfig = inline(InferenceConfig)
    group: ReplayLearnersConfig = inline(ReplayLearnersConfig)
    model: ParallelConfig = inline(ParallelConfig)
    preemption: PreemptionConfig = inline(PreemptionConfig)
    queue: QueueConfig = inline(QueueConfig)
    publish_every: Count = 1
    """Publish weights every N updates; must be 1 for PPO and TRPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self, equal=True)
        self.inference.check(self, self.actors_per_learner)
        self.queue.check(self)
        self.algorithm.check_batch(self.actors_per_learner * self.envs_per_actor)
        self.preemption.check(self, self.group.learners, self.unrolls, self.envs_per_actor // self.inference.groups)
        if self.publish_every != 1 and self.kind == Rounds.KIND:
            raise ThespisError("every round waits for the next version, so --publish-every must stay 1")

    @property
    def actors_per_learner(self) -> int:
        """Number of actors of each learner and inference server."""
        return self.actors // self.group.learners

    @property
    def unrolls(self) -> int:
        """Number of unrolls per update of one learner; each holds one group of environments."""
        per_group = self.actors_per_learner if self.kind == Rounds.KIND else self.queue.batch_unrolls
        return self.inference.groups * per_group

    @property
    def kind(self) -> str:
        """The kind of item that the algorithm learns from."""
        return str(self.algorithm.items.KIND)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a replay or a transport that cannot work."""
    if cfg.kind == Sequences.KIND:
        builders.validate_replay(cfg, spaces)
        builders.refuse_shards(cfg, "seed keeps the replay in the learner's process")
    builders.validate_inference(cfg.inference)
    builders.validate_parallel(cfg, spaces)


def add_learner(p: Program, cfg: Config, place: Placement, publish: Publish, group: GroupEdges | None) -> UnrollStorage:
    """Add a learner and its queue or replay. Returns where its inference server inserts unrolls."""
    threaded = replace(place, thread=True)
    if cfg.kind == Sequences.KIND:
        replay = builders.add_replay(p, cfg, place, cfg.actors_per_learner, cfg.group.learners)
        builders.add_replay_learner(threaded, cfg, replay, publish, group, cfg.publish_every)
        return UnrollStorage(insert_stream=replay.insert(0))
    rounds, capacity = cfg.kind == Rounds.KIND, cfg.inference.groups * cfg.queue.queue_capacity
    queue = builders.add_queue(place, cfg.unrolls if rounds else capacity)
    sample, shards = queue.sample(cfg.unrolls), builders.add_shards(place, cfg)
    builders.add_queue_learner(threaded, cfg, sample, publish, cfg.unrolls, group, cfg.publish_every, shards)
    return UnrollStorage(insert=queue.insert, lockstep=rounds)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; inference server, storage and learner share one process."""
    p, acts, stores = Program("seed"), [], []
    for learner, group in enumerate(builders.add_group(p, cfg, cfg.preemption.preempt)):
        central = cfg.group.place(p, "learner", learner)
        weights = builders.add_weights(central, hold_back=cfg.queue.forced_lag)
        storage = add_learner(p, cfg, central, weights.publish, group)
        acts.append(builders.add_inference(central, cfg, weights, storage))
        stores.append(weights)
    for actor in range(cfg.actors):
        builders.add_remote_actor(p, cfg, acts[cfg.group.learner_of(actor)])
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
