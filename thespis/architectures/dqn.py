"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay buffer, with a target network.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.dqn import DQN
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    add_replay_actors,
    add_replay_learner,
    add_weights,
    validate_replay,
)
from thespis.core.bounds import Count
from thespis.core.config import Experiment, Transitions
from thespis.core.program import Program

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
    algorithm: Algorithm[Transitions] = chosen(DQN)


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("dqn")
    replay = add_replay(p, cfg)
    weights = add_weights(p.at(process="storage", colocate="learner", restarts=3))
    add_replay_learner(p.at(colocate="learner", restarts=3), cfg, replay, weights.publish, cfg.publish_every)
    add_replay_actors(p, cfg, replay, weights.pull)
    add_evaluator(p, cfg, weights.pull)
    return p
