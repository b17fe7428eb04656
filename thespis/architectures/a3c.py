"""A3C (Mnih et al., 2016, arXiv:1602.01783): workers act, differentiate and push on their own, without any lock-step.

worker xN --gradients--> server (shared RMSProp, applies each as it comes) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thespis import roles
from thespis.architectures.parameter_server import Workers, wire
from thespis.config import OptimizerConfig
from thespis.program import Program


@dataclass(frozen=True)
class Config(Workers):
    """A3C. Workers never wait for each other; each gradient is applied to parameters that others have changed since."""

    end_with_episode: bool = True
    """With one environment per worker, end an unroll with its episode (paper); with several, episodes follow on."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(kind="rmsprop", learning_rate=3e-3, epsilon=1e-5, anneal=True, clip=0.5)
    )

    @property
    def cut_windows(self) -> bool:
        return self.end_with_episode and self.envs_per_actor == 1


PRESETS: dict[str, dict[str, Any]] = {"CartPole-v1": {"total_steps": 500_000}}


def program(cfg: Config) -> Program:
    p = Program("a3c")
    servers = [
        p.add("server", roles.ParameterServer, optimizer=cfg.optimizer, total_steps=cfg.total_steps, restarts=3)
        for _ in range(cfg.shards)
    ]
    return wire(p, cfg, servers)
