"""SEED RL (Espeholt et al., 2020, arXiv:1910.06591): actors only step environments; one process infers and learns.

actor xN --observations--> inference --unroll--> queue or replay --batch--> learner
actor xN <----actions----- inference <--weights, within the process-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.r2d2 import Sequences
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import add_evaluator, add_replay, add_weights, refuse_shards, validate_replay
from thespis.architectures.inference import InferenceConfig, UnrollStorage, build_inference, build_remote_actor
from thespis.architectures.learners import add_group, add_queue_learner, add_replay_learner
from thespis.architectures.model_parallel import add_shards, validate_parallel
from thespis.core.bounds import Count
from thespis.core.config import Experiment, Rounds, Unrolls
from thespis.core.errors import ThespisError
from thespis.core.learners_config import ParallelConfig, PreemptionConfig, QueueConfig, ReplayLearnersConfig
from thespis.core.program import Placement, Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.core.edges import GroupEdges, Publish
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
        validate_replay(cfg, spaces)
        refuse_shards(cfg, "seed keeps the replay in the learner's process")
    cfg.inference.validate()
    validate_parallel(cfg, spaces)


def add_learner(p: Program, cfg: Config, place: Placement, publish: Publish, group: GroupEdges | None) -> UnrollStorage:
    """Add a learner and its queue or replay. Returns where its inference server inserts unrolls."""
    threaded = replace(place, thread=True)
    if cfg.kind == Sequences.KIND:
        replay = add_replay(p, cfg, place, cfg.actors_per_learner, cfg.group.learners)
        add_replay_learner(threaded, cfg, replay, publish, group)
        return UnrollStorage(insert_stream=replay.insert(0))
    rounds, capacity = cfg.kind == Rounds.KIND, cfg.inference.groups * cfg.queue.queue_capacity
    queue = place.add("queue", roles.Queue, capacity=cfg.unrolls if rounds else capacity)
    sample = queue.edge(roles.Queue.sample, items=cfg.unrolls)
    shards = add_shards(place, cfg)
    add_queue_learner(threaded, cfg, sample, publish, cfg.unrolls, group, cfg.publish_every, shards)
    return UnrollStorage(insert=queue.edge(roles.Queue.insert), lockstep=rounds)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; inference server, storage and learner share one process."""
    p = Program("seed")
    cfg = replace(cfg, inference=cfg.inference.absolute())
    group, acts, pulls = add_group(p, cfg, cfg.group, cfg.preemption.preempt), [], []
    for learner in cfg.group.indices:
        central = cfg.group.place(p, "learner", learner)
        weights = add_weights(central, hold_back=cfg.queue.forced_lag)
        following, storage = weights.following, add_learner(p, cfg, central, weights.publish, group[learner])
        inference = central.add("inference", build_inference, cfg, cfg.inference, following=following, storage=storage)
        acts.append(inference.edge(roles.InferenceServer.act))
        pulls.append(weights.pull)
    actors = p.at(restarts=3, counts_as_actor=True)
    for actor in range(cfg.actors):
        actors.add("actor", build_remote_actor, cfg, cfg.inference, act=acts[cfg.group.learner_of(actor)])
    add_evaluator(p, cfg, pulls[0])
    return p
