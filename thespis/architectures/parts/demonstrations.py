"""How the demonstrations role is built."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thespis import roles

if TYPE_CHECKING:
    from thespis.architectures.parts.replay import Replayed
    from thespis.core.context import Context


def build_demonstrations(ctx: Context, cfg: Any) -> roles.Demonstrations:
    """All demonstrations as items of the algorithm.

    They depend only on the run's seed, so every incarnation of the role holds the same ones.
    """
    from thespis.experience.demonstrations import unrolls
    from thespis.experience.recording import gather
    from thespis.experience.replay_parts import build_replay_parts, row_layout
    from thespis.experience.step_storage import StepStorage
    from thespis.runs.spaces import spaces_of

    items: Replayed = cfg.algorithm.items
    spaces, settings = spaces_of(cfg), replace(items.replay, actor_priorities=False, bytes=0, warm_up=1)
    gathered = [
        list(unrolls(episode, items.unroll_length, spaces.action_space))
        for episode in gather(cfg.demos, cfg.env_config, cfg.demo_episodes, ctx.identity.run_seed)
    ]
    one = StepStorage(row_layout(spaces, settings), 1)
    rows = sum(one.most(unroll, one.opens(unroll)) for episode in gathered for unroll in episode)
    steps, window, sampler, shape = build_replay_parts(cfg.algorithm, spaces, settings, rows)
    table = roles.Demonstrations(ctx, steps, window, sampler, roles.Demonstrations.LIMITER, shape)
    table.fill(gathered)
    return table
