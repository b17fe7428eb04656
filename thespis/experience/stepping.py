"""One step of training environments."""

from __future__ import annotations

from thespis.core.context import Context
from thespis.core.types import Array
from thespis.envs.autoreset import Environments, EnvStep


async def take_step(ctx: Context, envs: Environments, actions: Array) -> EnvStep:
    """Step the environments; count the steps for the run's limit, and report the episodes that ended."""
    async with ctx.work("env_step", items=envs.num_envs):
        step = envs.step(actions)
        ctx.count_steps(step.env_steps)
    for episode in step.episodes:
        ctx.episode(episode)
    return step
