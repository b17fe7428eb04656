"""Ape-X DPG (Horgan et al., 2018, arXiv:1803.00933): continuous control, learned from what surprised many actors.

actor xN --unroll--> replay --by priority--> learner --policy, critic--> store --pull--> actor xN
                     replay <--priorities--- learner
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.dpg import DPG
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
from thespis.core.user_code import Spec

validate = validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """Ape-X DPG. The defaults are for small control tasks; the help of each setting tells the paper's."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that makes one."""
    actors: int = 1
    """How many actors step environments (paper: 64)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with noise of its own (paper: 1)."""
    publish_every: Count = 4
    """Updates between weights that actors can see."""
    algorithm: Algorithm[Transitions] = chosen(DPG)


def program(cfg: Config) -> Program:
    p = Program("apex-dpg")
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
