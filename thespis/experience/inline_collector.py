"""InlineCollector: a learner steps its own environments, on the weights it trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thespis.core.context import Context
from thespis.core.types import Array, Inputs, State, Unroll, Version
from thespis.envs.autoreset import Environments
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.experience.stepping import take_step
from thespis.experience.writers import UnrollWriter
from thespis.networks.policy_runner import PolicyRunner


class InlineCollector:
    """Collects consecutive unrolls from this process's own environments.

    `cut`: end an unroll early when all its environments end their episodes at the same step. With one environment this
    is A3C's rule: the next unroll starts with the next episode. Otherwise an unroll spans episodes. `ahead`: collect
    the next unroll while the gradients of this one are exchanged; its weights are then one update old.
    """

    def __init__(
        self,
        ctx: Context,
        envs: Environments,
        runner: PolicyRunner,
        length: int,
        version: Callable[[], Version],
        *,
        cut: bool = False,
        ahead: bool = False,
        return_discount: float | None = None,
    ) -> None:
        self._ctx, self._envs, self._runner, self._length, self._version = ctx, envs, runner, length, version
        self._cut, self._ahead, self._return_discount = cut, ahead, return_discount
        self._writer: UnrollWriter | None = None
        self._inputs: Inputs
        self._state: State
        self._next: asyncio.Future[Unroll] | None = None

    async def next(self) -> Unroll:
        """Return the next unroll."""
        if not self._ahead:
            return await self._collect()
        if self._next is None:
            self._next = self._ctx.ahead(self._collect())
        unroll = await self._next
        self._next = self._ctx.ahead(self._collect())
        return unroll

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """Do nothing: no replay waits for priorities."""

    async def close(self) -> None:
        """Cancel the unroll under way and close the environments."""
        if self._next is not None:
            self._next.cancel()
        self._envs.close()

    async def _collect(self) -> Unroll:
        if self._ctx.steps_exhausted:
            await self._ctx.wait_for_end()
        writer = self._writer or await self._reset()
        unroll = None
        while unroll is None:
            ctx, envs = self._ctx, self._envs
            async with ctx.work("inference", items=envs.num_envs):
                acted = self._runner.act(self._inputs, self._state)
            step = await take_step(ctx, envs, acted.actions)
            self._inputs, self._state = next_inputs(step, acted.actions), acted.state
            unroll = writer.write(acted, self._version(), step, self._inputs)
            if self._cut and (step.terminated | step.truncated).all():
                unroll = unroll or writer.cut()
                await self._reopen(writer)
        return unroll

    async def _reset(self) -> UnrollWriter:
        ctx, envs = self._ctx, self._envs
        async with ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(ctx.seed("envs"))
        self._inputs, self._state = first_inputs(obs, envs), self._runner.initial_state(envs.num_envs)
        self._writer = UnrollWriter(self._length, self._inputs, self._state, self._return_discount)
        return self._writer

    async def _reopen(self, writer: UnrollWriter) -> None:
        """Take the reset step of next-step autoreset now, so that no unroll holds it."""
        if not self._inputs.first.all():
            async with self._ctx.work("env_step", items=self._envs.num_envs):
                step = self._envs.step(self._inputs.last_action)
            self._inputs = next_inputs(step, self._inputs.last_action)
        writer.open(self._inputs, self._state)
