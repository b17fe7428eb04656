"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay, towards a target that stands still.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.dqn import DQN
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    build_replay_actor,
    build_replay_learner,
    validate_replay,
)
from thespis.core.bounds import Count
from thespis.core.config import Experiment, Transitions
from thespis.core.program import Program

validate = validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """DQN. The defaults solve small control tasks in seconds; Atari ids take the paper's settings instead."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    actors: int = 1
    """How many actors step environments."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side."""
    publish_every: Count = 4
    """Updates between weights that actors can see."""
    algorithm: Algorithm[Transitions] = chosen(DQN)


def program(cfg: Config) -> Program:
    p = Program("dqn")
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
