"""Ape-X (Horgan et al., 2018, arXiv:1803.00933): many actors explore differently; the learner sees what surprised them.

actor xN --unroll--> replay --by priority--> learner --weights--> store --pull--> actor xN
                     replay <--priorities--- learner
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.values import OneLearner, exploring_actor, refuse, value_program
from thespis.config import QNetworkConfig, ReplayConfig
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.runtime.context import Context
    from thespis.types import Array

__all__ = ["PRESETS", "Config", "program", "refuse"]


@dataclass(frozen=True)
class Config(OneLearner):
    """Ape-X DQN. The defaults are for small control tasks; Atari ids take the paper's settings instead."""

    actors: int = 2
    """How many actors step environments (paper: 360)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with an epsilon of its own (paper: 1)."""
    epsilon: float = 0.4
    """Share of random actions of the environment that explores most (paper)."""
    epsilon_exponent: float = 7.0
    """Environment i of N explores epsilon^(1 + this * i / (N - 1)) (paper)."""
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True)
    )
    network: QNetworkConfig = field(default_factory=lambda: QNetworkConfig(hidden=(128, 128), dueling=True))

    def ladder(self, actor: int) -> Array:
        """The shares of random actions of one actor's environments; together the actors have the whole ladder."""
        import numpy as np

        number = self.actors * self.envs_per_actor
        places = np.arange(actor * self.envs_per_actor, (actor + 1) * self.envs_per_actor)
        return np.asarray(self.epsilon ** (1.0 + self.epsilon_exponent * places / max(1, number - 1)))


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {  # as for DQN, but longer: importance weights shorten steps, and half of the ladder explores a lot
        "total_steps": 80_000,
        "batch": 64,
        "n_step": 10,
        "replay": {"capacity": 50_000},
        "reward": {"kind": "scale", "scale": 0.1},
        "optimizer": {"learning_rate": 2e-3, "anneal": True},
    },
    "ALE/*": {  # appendix D
        "total_steps": 50_000_000,
        "envs_per_actor": 8,
        "unroll_length": 50,
        "batch": 512,
        "batches_per_draw": 1,
        "publish_every": 1,
        "target_period": 2_500,
        "replay": {"capacity": 1_000_000, "warm_up": 50_000, "samples_per_insert": 1.3},
        "reward": {"kind": "abs_one"},
        "optimizer": {"kind": "rmsprop", "learning_rate": 6.25e-5, "decay": 0.95, "epsilon": 1.5e-7, "clip": 40.0},
        "checkpoint_every": 1800.0,
        "eval_every": 600.0,
        "stall_timeout": 600.0,
    },
}


def build_actor(ctx: Context, cfg: Config, insert: Any, pull: Any) -> roles.Actor:
    from thespis.architectures.parts import local_policy

    ladder = cfg.ladder(ctx.identity.index)
    return exploring_actor(ctx, cfg, lambda steps: ladder, insert, local_policy(ctx, cfg, pull))


def program(cfg: Config) -> Program:
    return value_program("apex", cfg, build_actor)
