"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace corrects the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import add_evaluator, build_unroll_actor
from thespis.architectures.learners import add_group, add_queue_learner
from thespis.architectures.model_parallel import add_shards, validate_parallel
from thespis.architectures.pulled_weights import add_actor_weights
from thespis.core.config import Experiment, Unrolls
from thespis.core.learners_config import LearnersConfig, ParallelConfig, PreemptionConfig, QueueConfig, WeightsConfig
from thespis.core.program import Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """IMPALA. The defaults suit small control tasks; Atari ids use the settings of the paper's table G.1."""

    algorithm: Algorithm[Unrolls] = chosen(VTrace)
    queue: QueueConfig = inline(QueueConfig)
    pulled: WeightsConfig = inline(WeightsConfig)
    group: LearnersConfig = inline(LearnersConfig)
    model: ParallelConfig = inline(ParallelConfig)
    preemption: PreemptionConfig = inline(PreemptionConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)
        self.preemption.check(self, self.group.learners, self.queue.batch_unrolls, self.envs_per_actor)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a network that cannot be divided."""
    validate_parallel(cfg, spaces)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own actors."""
    p, unrolls = Program("impala"), cfg.queue.batch_unrolls
    group, inserts, stores = add_group(p, cfg, cfg.group, cfg.preemption.preempt), [], []
    for learner in cfg.group.indices:
        with_learner = cfg.group.place(p, "learner", learner)
        queue = with_learner.add("queue", roles.Queue, capacity=cfg.queue.queue_capacity)
        weights = add_actor_weights(with_learner, cfg, hold_back=cfg.queue.forced_lag)
        sample = queue.edge(roles.Queue.sample, items=unrolls)
        shards = add_shards(with_learner, cfg)
        add_queue_learner(with_learner, cfg, sample, weights.publish, unrolls, group[learner], shards=shards)
        inserts.append(queue.edge(roles.Queue.insert))
        stores.append(weights)
    actors = p.at(restarts=3, counts_as_actor=True)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        # Actors run ahead: each starts its next unroll while it pulls weights.
        actors.add("actor", build_unroll_actor, cfg, insert=inserts[learner], pull=stores[learner].pull, ahead=True)
    add_evaluator(p, cfg, stores[0].pull_exact)
    return p
