"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay buffer, with a target network.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.dqn import DQN
from thespis.architectures import builders
from thespis.core.config import Experiment, Transitions
from thespis.core.learners_config import OwnReplaysConfig
from thespis.core.program import Program
from thespis.core.settings import inline

validate = builders.validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """DQN, also for SAC and DPG. The defaults suit small control tasks; Atari ids use the paper's settings."""

    actors: int = 1
    """Number of actor processes that step environments."""
    envs_per_actor: int = 8
    """Environments per actor; the actor steps them as one batch."""
    group: OwnReplaysConfig = inline(OwnReplaysConfig)
    algorithm: Algorithm[Transitions] = chosen(DQN)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own replay and actors."""
    p = Program("dqn")
    replays, stores = builders.add_own_replays(p, cfg), builders.add_own_weights(p, cfg)
    builders.add_replay_learners(p, cfg, replays, stores)
    builders.add_replay_actors(p, cfg, replays, stores)
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
