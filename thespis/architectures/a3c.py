"""A3C (Mnih et al., 2016, arXiv:1602.01783): workers act, differentiate and push on their own, without any lock-step.

worker xN --gradients--> server (shared RMSProp, applies each as it comes) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.parameter_server import Workers, add_evaluator, add_servers, wire
from thespis.config import OptimizerConfig
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(Workers):
    """A3C. Workers never wait for each other; each gradient is applied to parameters that others have changed since."""

    end_with_episode: bool = True
    """With one environment per worker, end an unroll with its episode (paper); with several, episodes follow on."""
    hogwild: bool = False
    """Update parameters and statistics in place in shared memory, without locks or messages (paper); local only."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(kind="rmsprop", learning_rate=3e-3, epsilon=1e-5, anneal=True, clip=0.5)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hogwild and self.on != "local":
            raise ThespisError(
                f"--hogwild shares memory between processes of one machine; use --on local, not {self.on}"
            )
        if self.hogwild and (self.shards != 1 or self.gradient_dtype != "float32"):
            raise ThespisError("--hogwild sends no gradients anywhere; leave off --shards and --gradient-dtype")

    @property
    def cut_windows(self) -> bool:
        return self.end_with_episode and self.envs_per_actor == 1


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"total_steps": 500_000},  # twice what it takes; the learning rate anneals over it
    # Unrolls of two episodes, so that cue and question are in one.
    "thespis/Memory-v0": {"total_steps": 300_000, "unroll_length": 20, "reward": {"kind": "none"}},
}


def build_hogwild(ctx: Context, cfg: Config, join: Any) -> roles.Learner:
    from thespis.architectures.parts import acting_learner, worker_network
    from thespis.exchange.hogwild import Hogwild

    made = worker_network(ctx, cfg)
    return acting_learner(ctx, cfg, made, Hogwild(ctx, made, cfg.optimizer, join, cfg.budget))


def program(cfg: Config) -> Program:
    p = Program("a3c")
    if cfg.hogwild:
        p.notes.append("hogwild: workers change parameters and statistics in shared memory, without locks")
        # No restarts: workers could not tell that the memory they hold is no longer the server's.
        server = p.add("server", roles.SharedParameters, optimizer=cfg.optimizer, workers=cfg.actors)
        for _ in range(cfg.actors):
            p.add("worker", build_hogwild, cfg, server.edge("join"), actor=True, restarts=3)
        add_evaluator(p, cfg, [server])
        return p
    return wire(p, cfg, add_servers(p, cfg))
