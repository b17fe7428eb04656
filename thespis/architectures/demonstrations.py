"""Demonstrations as a role: where they come from, checked before a run starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thespis import roles

if TYPE_CHECKING:
    from thespis.algorithms.r2d2 import Replayed
    from thespis.core.context import Context


def validate_demonstrations(cfg: Any) -> None:
    """Refuse demonstrations that cannot be read, or that are of other spaces than the environment."""
    from thespis.experience.recording import gather

    gather(cfg.demos, cfg.env_config, cfg.demo_episodes, cfg.seed)


def build_demonstrations(ctx: Context, cfg: Any) -> roles.Demonstrations:
    """All demonstrations as items of the algorithm. They are gathered from the run's seed alone, so that every
    incarnation of the role has the same."""
    from thespis.experience.demonstrations import unrolls
    from thespis.experience.recording import gather
    from thespis.experience.steps import Steps
    from thespis.experience.tables import build_table, row_layout
    from thespis.runs.spaces import spaces_of

    items: Replayed = cfg.algorithm.items
    spaces, settings = spaces_of(cfg), replace(items.replay, actor_priorities=False, bytes=0, warm_up=1)
    gathered = [
        list(unrolls(episode, items.unroll_length, spaces.action_space))
        for episode in gather(cfg.demos, cfg.env_config, cfg.demo_episodes, ctx.identity.run_seed)
    ]
    one = Steps(row_layout(spaces, settings), 1)
    rows = sum(one.most(unroll, one.opens(unroll)) for episode in gathered for unroll in episode)
    steps, window, sampler, shape = build_table(cfg.algorithm, spaces, settings, rows)
    table = roles.Demonstrations(ctx, steps, window, sampler, roles.Demonstrations.LIMITER, shape)
    table.fill(gathered)
    return table
