"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay, towards a target that stands still.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.values import Exploring, OneLearner, exploring_actor, refuse, value_program
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.runtime.context import Context

__all__ = ["PRESETS", "Config", "program", "refuse"]


@dataclass(frozen=True)
class Config(Exploring, OneLearner):
    """DQN. The defaults solve small control tasks in seconds; Atari ids take the paper's settings instead."""


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {  # long windows carry its dense rewards back quickly; values stay below 10
        "total_steps": 50_000,
        "batch": 64,
        "n_step": 10,
        "target_period": 50,
        "replay": {"capacity": 20_000, "samples_per_insert": 8.0},
        "reward": {"kind": "scale", "scale": 0.1},
        "network": {"hidden": [256, 256]},
        "optimizer": {"learning_rate": 2e-3, "anneal": True},
    },
    "ALE/*": {  # extended data table 1; 4 steps of one environment per update
        "total_steps": 50_000_000,
        "envs_per_actor": 1,
        "unroll_length": 4,
        "batch": 32,
        "batches_per_draw": 1,
        "publish_every": 1,
        "n_step": 1,
        "double": False,
        "target_period": 2_500,
        "epsilon_end": 0.1,
        "epsilon_steps": 1_000_000,
        "replay": {"capacity": 1_000_000, "warm_up": 50_000, "samples_per_insert": 8.0},
        "reward": {"kind": "abs_one"},
        # The paper sums the loss over the batch; with a mean, epsilon shrinks by the square of its size.
        "optimizer": {"kind": "rmsprop", "learning_rate": 2.5e-4, "decay": 0.95, "epsilon": 1e-5, "clip": 0.0},
        "checkpoint_every": 1800.0,
        "eval_every": 600.0,
        "stall_timeout": 600.0,
    },
}


def build_actor(ctx: Context, cfg: Config, insert: Any, pull: Any) -> roles.Actor:
    from thespis.architectures.parts import local_policy

    return exploring_actor(ctx, cfg, cfg.epsilon, insert, local_policy(ctx, cfg, pull))


def program(cfg: Config) -> Program:
    return value_program("dqn", cfg, build_actor)
