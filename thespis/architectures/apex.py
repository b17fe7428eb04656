"""Ape-X (Horgan et al., 2018, arXiv:1803.00933): many actors explore differently; the learner sees what surprised them.

actor xN --unroll--> replay --by priority--> learner --weights--> store --pull--> actor xN
                     replay <--priorities--- learner

The algorithm decides what an item of the replay is. DQN, DPG and SAC learn from transitions; DPG and SAC control
continuous actions, and their weights are a policy and its critics. With R2D2 (Kapturowski et al., 2019) unrolls carry
the recurrent state, and items are sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.dqn import DQN, EpsilonLadder
from thespis.algorithms.r2d2 import Sequences
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    build_replay_actor,
    build_replay_learner,
    validate_replay,
)
from thespis.core.bounds import Count
from thespis.core.config import Experiment, QNetworkConfig, ReplayConfig, Transitions
from thespis.core.program import Program

validate = validate_replay
_PRIORITISED = ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True)


@dataclass(frozen=True)
class Config(Experiment):
    """Ape-X with DQN, R2D2, DPG or SAC. The defaults are for small tasks; Atari ids take the papers' settings."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    actors: int = 2
    """How many actors step environments (papers: 360 in Ape-X DQN, 256 in R2D2, 64 in Ape-X DPG)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with an epsilon or noise of its own (papers: 1)."""
    publish_every: Count = 4
    """Updates between weights that actors can see."""
    algorithm: Algorithm[Transitions | Sequences] = chosen(
        lambda: DQN(
            items=Transitions(replay=_PRIORITISED),
            exploration=EpsilonLadder(),
            network=QNetworkConfig(hidden=(128, 128), dueling=True),
        )
    )


def program(cfg: Config) -> Program:
    p = Program("apex")
    replay = add_replay(p, cfg)
    weights = p.at(process="storage", colocate="learner", restarts=3).add("weights", roles.WeightStore)
    publish, pull = weights.edge(roles.WeightStore.publish), weights.edge(roles.WeightStore.pull)
    p.at(colocate="learner", restarts=3).add(
        "learner",
        build_replay_learner,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        publish=publish,
        publish_every=cfg.publish_every,
    )
    actors = p.at(restarts=3, counts_as_actor=True)
    for index in range(cfg.actors):
        actors.add("actor", build_replay_actor, cfg, insert=replay.insert(index), pull=pull)
    add_evaluator(p, cfg, pull)
    return p
