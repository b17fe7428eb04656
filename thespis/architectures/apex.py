"""Ape-X (Horgan et al., 2018, arXiv:1803.00933): many actors explore differently and share one prioritised replay.

actor xN --unroll--> replay --by priority--> learner --weights--> store --pull--> actor xN
                     replay <--priorities--- learner

The algorithm determines the replay's items. DQN, DPG and SAC learn from transitions; DPG and SAC are for continuous
actions. R2D2 (Kapturowski et al., 2019) learns from sequences, so its unrolls carry the recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.dqn import DQN, EpsilonLadder
from thespis.architectures import builders
from thespis.core.config import Experiment, QNetworkConfig, ReplayConfig, Sequences, Transitions
from thespis.core.learners_config import OwnReplaysConfig
from thespis.core.program import Program
from thespis.core.settings import inline

validate = builders.validate_replay
_PRIORITISED = ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True)


@dataclass(frozen=True)
class Config(Experiment):
    """Ape-X with DQN, R2D2, DPG or SAC. The defaults suit small tasks; Atari ids use the papers' settings."""

    actors: int = 2
    """Number of actor processes (papers: 360 in Ape-X DQN, 256 in R2D2, 64 in Ape-X DPG)."""
    envs_per_actor: int = 4
    """Environments per actor; each has its own epsilon or noise (papers: 1)."""
    group: OwnReplaysConfig = inline(OwnReplaysConfig)
    algorithm: Algorithm[Transitions | Sequences] = chosen(
        lambda: DQN(
            items=Transitions(replay=_PRIORITISED),
            exploration=EpsilonLadder(),
            network=QNetworkConfig(hidden=(128, 128), dueling=True),
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own replay and actors."""
    p = Program("apex")
    replays, stores = builders.add_own_replays(p, cfg), builders.add_own_weights(p, cfg)
    builders.add_replay_learners(p, cfg, replays, stores)
    builders.add_replay_actors(p, cfg, replays, stores)
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
