"""The evaluator of architectures whose learner publishes to a weight store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from thespis import roles
from thespis.program import Handle, Program

if TYPE_CHECKING:
    from thespis.config import NetworkConfig, Spec
    from thespis.runtime.context import Context


class Evaluated(Protocol):
    @property
    def env(self) -> Spec: ...
    @property
    def network(self) -> NetworkConfig: ...
    @property
    def actors(self) -> int: ...
    @property
    def eval_episodes(self) -> int: ...
    @property
    def eval_every(self) -> float: ...


def build_evaluator(ctx: Context, cfg: Evaluated, pull: Any) -> roles.Evaluator:
    from thespis.architectures.parts import environments, local_policy

    return roles.Evaluator(
        ctx,
        make_envs=lambda number: environments(ctx, cfg, number),
        make_policy=lambda: local_policy(ctx, cfg, pull),
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
    )


def add_evaluator(p: Program, cfg: Evaluated, weights: Handle) -> None:
    """Beside the learner, unless it is switched off. It works in bursts, so no CPU is kept for it."""
    if cfg.eval_episodes:
        p.add("evaluator", build_evaluator, cfg, weights.edge("pull"), near="learner", cpus=0, restarts=3)
