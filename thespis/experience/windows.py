"""Experience that a learner collects itself, in its own process, on the very weights it differentiates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from thespis.core.context import Context
from thespis.core.types import Array, Inputs, State, Unroll, Version
from thespis.envs.autoreset import Environments
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.experience.writers import UnrollWriter
from thespis.networks.acting import Stepper


class Windows:
    """Unrolls of this process's own environments, one after the other.

    `cut`: end an unroll early when all its environments end their episodes at the same step; with one environment
    that is A3C's rule, and the next unroll opens with the next episode. Otherwise episodes follow each other inside
    an unroll. `ahead`: collect the next one while the gradients of this one are under way, on weights that are then
    no longer those it is learned with.
    """

    def __init__(
        self,
        ctx: Context,
        envs: Environments,
        stepper: Stepper,
        length: int,
        version: Callable[[], Version],
        *,
        cut: bool = False,
        ahead: bool = False,
        return_discount: float | None = None,
    ) -> None:
        self._ctx, self._envs, self._stepper, self._length, self._version = ctx, envs, stepper, length, version
        self._cut, self._ahead, self._return_discount = cut, ahead, return_discount
        self._writer: UnrollWriter | None = None
        self._inputs: Inputs
        self._state: State
        self._next: asyncio.Future[Unroll] | None = None

    async def take(self) -> Unroll:
        if not self._ahead:
            return await self._collect()
        if self._next is None:
            self._next = self._ctx.ahead(self._collect())
        unroll = await self._next
        self._next = self._ctx.ahead(self._collect())
        return unroll

    async def done(self, batch: Unroll, priorities: Array | None) -> None:
        """Nobody else has a share in what was collected here."""

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._envs.close()

    async def _collect(self) -> Unroll:
        if self._ctx.spent:
            await self._ctx.rest()
        writer = self._writer or await self._reset()
        unroll = None
        while unroll is None:
            ctx, envs = self._ctx, self._envs
            async with ctx.work("inference", items=envs.num_envs):
                acted = self._stepper.act(self._inputs, self._state)
            async with ctx.work("env_step", items=envs.num_envs):
                step = envs.step(acted.actions)
                ctx.took(step.taken)
            for episode in step.episodes:
                ctx.episode(episode)
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
        self._inputs, self._state = first_inputs(obs, envs), self._stepper.initial_state(envs.num_envs)
        self._writer = UnrollWriter(self._length, self._inputs, self._state, self._return_discount)
        return self._writer

    async def _reopen(self, writer: UnrollWriter) -> None:
        """Step over the reset that next-step autoreset has still to make, so that it is in no unroll."""
        if not self._inputs.first.all():
            async with self._ctx.work("env_step", items=self._envs.num_envs):
                step = self._envs.step(self._inputs.last_action)
            self._inputs = next_inputs(step, self._inputs.last_action)
        writer.open(self._inputs, self._state)
