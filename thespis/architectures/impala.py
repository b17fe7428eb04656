"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace corrects the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures import builders
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
    builders.validate_parallel(cfg, spaces)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own actors."""
    p, queues, stores = Program("impala"), [], []
    for learner, group in enumerate(builders.add_group(p, cfg, cfg.preemption.preempt)):
        with_learner, unrolls = cfg.group.place(p, "learner", learner), cfg.queue.batch_unrolls
        queue = builders.add_queue(with_learner, cfg.queue.queue_capacity)
        weights = builders.add_actor_weights(with_learner, cfg, cfg.pulled, hold_back=cfg.queue.forced_lag)
        sample, shards = queue.sample(unrolls), builders.add_shards(with_learner, cfg)
        builders.add_queue_learner(with_learner, cfg, sample, weights.publish, unrolls, group, shards=shards)
        queues.append(queue)
        stores.append(weights)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        # Actors run ahead: each starts its next unroll while it pulls weights.
        builders.add_unroll_actor(p, cfg, queues[learner].insert, stores[learner].pull, ahead=True)
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
