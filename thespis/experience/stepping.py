"""One step of environments, as every collector of experience takes it."""

from __future__ import annotations

from thespis.core.context import Context
from thespis.core.types import Array
from thespis.envs.autoreset import Environments, EnvStep


async def take_step(ctx: Context, envs: Environments, actions: Array) -> EnvStep:
    """Step all environments; report the steps that were taken and the episodes that ended."""
    async with ctx.work("env_step", items=envs.num_envs):
        step = envs.step(actions)
        ctx.took(step.taken)
    for episode in step.episodes:
        ctx.episode(episode)
    return step
