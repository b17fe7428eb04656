"""R2D2 (Kapturowski et al., 2019): Ape-X with memory. Sequences start from the state their actor was in, and burn in.

actor xN --unroll, state--> replay --sequences by priority--> learner --weights--> store --pull--> actor xN
                            replay <--------priorities------- learner
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.r2d2 import R2D2, Sequences
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    build_replay_actor,
    build_replay_learner,
    validate_replay,
)
from thespis.core.bounds import Count
from thespis.core.config import Experiment
from thespis.core.program import Program

validate = validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """R2D2. The defaults are for small tasks; Atari ids take the paper's settings instead."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    actors: int = 2
    """How many actors step environments (paper: 256)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with an epsilon of its own (paper: 1)."""
    publish_every: Count = 4
    """Updates between weights that actors can see."""
    algorithm: Algorithm[Sequences] = chosen(R2D2)


def program(cfg: Config) -> Program:
    p = Program("r2d2")
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
