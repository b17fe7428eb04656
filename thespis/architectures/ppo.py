"""PPO (Schulman et al., 2017, arXiv:1707.06347): all actors act on one weight version; the learner runs several epochs.

actor xN --unroll--> queue --N of one version--> learner --weights--> store --next version--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.ppo import PPO
from thespis.architectures import builders
from thespis.core.bounds import CountOrZero
from thespis.core.config import Experiment, Rounds
from thespis.core.errors import ThespisError
from thespis.core.learners_config import LearnersConfig, ParallelConfig, PreemptionConfig, WeightsConfig
from thespis.core.program import Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """PPO, also for TRPO. The defaults suit small control tasks; Atari ids use the settings of the paper's table 5."""

    actors: int = 2
    """Number of actor processes that step environments, all on the same weight version."""
    envs_per_actor: int = 8
    """Environments per actor; the actor steps them as one batch."""
    backups: CountOrZero = 0
    """Backup actors: each update drops the unrolls of the N slowest actors of each learner."""
    group: LearnersConfig = inline(LearnersConfig)
    model: ParallelConfig = inline(ParallelConfig)
    preemption: PreemptionConfig = inline(PreemptionConfig)
    pulled: WeightsConfig = inline(WeightsConfig)
    algorithm: Algorithm[Rounds] = chosen(PPO)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self, equal=True)
        if self.backups >= self.actors // self.group.learners:
            of = f"{self.actors} actors" if self.group.learners == 1 else "the actors of each learner"
            raise ThespisError(f"--backups is {self.backups} of {of}; an update must wait for at least one of them")
        self.algorithm.check_batch(self.quorum * self.envs_per_actor)
        self.preemption.check(self, self.group.learners, self.quorum, self.envs_per_actor)

    @property
    def quorum(self) -> int:
        """Number of unrolls per update of one learner."""
        return self.actors // self.group.learners - self.backups


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a network that cannot be divided."""
    builders.validate_parallel(cfg, spaces)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own actors."""
    p, queues, stores = Program("ppo"), [], []
    # Queue, store and learner share a process, so that they fail together. If the queue alone died with an unroll,
    # its actor would wait for a version that the learner cannot compute without this unroll.
    for learner, group in enumerate(builders.add_group(p, cfg, cfg.preemption.preempt)):
        with_learner, unrolls = cfg.group.place(p, "learner", learner), cfg.quorum
        queue = builders.add_queue(with_learner, capacity=cfg.actors // cfg.group.learners)
        weights = builders.add_actor_weights(with_learner, cfg, cfg.pulled)
        sample, shards = queue.sample(unrolls, of_one_version=True), builders.add_shards(with_learner, cfg)
        builders.add_queue_learner(with_learner, cfg, sample, weights.publish, unrolls, group, shards=shards)
        queues.append(queue)
        stores.append(weights)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        # To pull is to wait for the next version, so an actor collects one unroll per version.
        builders.add_unroll_actor(p, cfg, queues[learner].insert, stores[learner].following)
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
