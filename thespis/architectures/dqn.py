"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay buffer, with a target network.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.dqn import DQN
from thespis.architectures.builders import add_evaluator, validate_replay
from thespis.architectures.learners import add_own_replays, add_own_weights, add_replay_actors, add_replay_learners
from thespis.core.bounds import Count
from thespis.core.config import Experiment, Transitions
from thespis.core.learners_config import ReplayLearnersConfig, WeightsConfig
from thespis.core.program import Program
from thespis.core.settings import inline

validate = validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """DQN, also for SAC and DPG. The defaults suit small control tasks; Atari ids use the paper's settings."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    actors: int = 1
    """Number of actor processes that step environments."""
    envs_per_actor: int = 8
    """Environments per actor; the actor steps them as one batch."""
    publish_every: Count = 4
    """Publish weights every N updates."""
    group: ReplayLearnersConfig = inline(ReplayLearnersConfig)
    pulled: WeightsConfig = inline(WeightsConfig)
    algorithm: Algorithm[Transitions] = chosen(DQN)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own replay and actors."""
    p = Program("dqn")
    replays, stores = add_own_replays(p, cfg), add_own_weights(p, cfg)
    add_replay_learners(p, cfg, replays, stores)
    add_replay_actors(p, cfg, replays, stores)
    add_evaluator(p, cfg, stores[0].pull_exact)
    return p
