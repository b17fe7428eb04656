"""Actor: vector environment × policy → writer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol

import numpy as np
from gymnasium.spaces import Box

from thespis.envs.autoreset import Environments, EnvStep
from thespis.experience.writers import UnrollWriter
from thespis.runtime.context import Context
from thespis.types import Acted, Array, Inputs, State, Tree, Unroll, Version


class Policy(Protocol):
    """Something that acts. Whether it does so here or in another process is not the actor's business."""

    @property
    def version(self) -> Version: ...

    def initial_state(self, batch: int) -> State: ...

    async def refresh(self) -> None: ...

    async def act(self, inputs: Inputs, state: State) -> Acted: ...


class Insert(Protocol):
    """The edge that takes finished unrolls."""

    name: str

    def __call__(self, unroll: Unroll, /) -> Coroutine[Any, Any, None]: ...


class Actor:
    """Steps its environments for ever: refresh the policy, collect an unroll, hand it over.

    It goes on while an unroll is on its way and waits only if the one before has not been taken yet.
    """

    LOST: ClassVar = "partial_unrolls"  # what goes with a life of it, counted when it is restarted

    def __init__(
        self,
        ctx: Context,
        envs: Environments,
        policy: Policy,
        insert: Insert,
        unroll_length: int,
        return_discount: float | None = None,
        before_unroll: Callable[[], None] | None = None,
    ) -> None:
        """`return_discount`: also tell the learner the discounted return so far, at every step.

        `before_unroll`: called before every unroll, for what changes in the course of a run.
        """
        self._ctx, self._envs, self._policy, self._insert = ctx, envs, policy, insert
        self._length, self._return_discount, self._before_unroll = unroll_length, return_discount, before_unroll

    async def run(self) -> None:
        ctx, envs, policy = self._ctx, self._envs, self._policy
        await policy.refresh()
        async with ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(ctx.seed("envs"))
        inputs = first_inputs(obs, envs)
        state = policy.initial_state(envs.num_envs)
        writer = UnrollWriter(self._length, inputs, state, self._return_discount)
        handed = None
        self._prepare()
        while True:
            acted = await policy.act(inputs, state)
            async with ctx.work("env_step", items=envs.num_envs):
                step = envs.step(acted.actions)
            for episode in step.episodes:
                ctx.episode(episode)
            inputs, state = next_inputs(step, acted.actions), acted.state
            unroll = writer.write(acted, policy.version, step, inputs)
            if unroll is not None:
                ctx.count("env_steps", int(np.count_nonzero(unroll.valid)))
                if handed is not None:
                    await ctx.wait(self._insert.name, handed)
                handed = ctx.ahead(self._insert(unroll))
                await policy.refresh()
                self._prepare()

    def _prepare(self) -> None:
        if self._before_unroll is not None:
            self._before_unroll()

    async def close(self) -> None:
        self._envs.close()


def first_inputs(obs: Tree, envs: Environments) -> Inputs:
    """What a policy is given at the first step: episodes open everywhere, and nothing led there."""
    batch, space = envs.num_envs, envs.action_space
    no_action = np.zeros((batch, *(space.shape or ())), np.float32 if isinstance(space, Box) else np.int64)
    return Inputs(obs, np.ones(batch, np.bool_), no_action, np.zeros(batch, np.float32))


def next_inputs(step: EnvStep, actions: Array) -> Inputs:
    """What a policy is given after a step; an episode that opens has no last action or reward."""
    first = step.first
    if not first.any():
        return Inputs(step.obs, first, actions, step.rewards)
    keep = ~first
    shaped = keep.reshape(-1, *(1,) * (actions.ndim - 1))
    return Inputs(step.obs, first, actions * shaped, step.rewards * keep)
