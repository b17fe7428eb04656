"""Actor: vector environment × policy → writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from thespis.core.context import Context
from thespis.core.edges import Insert
from thespis.core.service import RoleDescription
from thespis.core.types import Acted, Inputs, State, Unroll, Version
from thespis.envs.autoreset import Environments, EnvStep
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.experience.writers import UnrollWriter


class Policy(Protocol):
    """Something that acts. Whether it does so here or in another process is not the actor's business."""

    name: str
    """What an actor waits for when it waits for actions."""

    @property
    def version(self) -> Version: ...

    def initial_state(self, batch: int) -> State: ...

    async def refresh(self, anew: bool = False) -> None: ...

    async def act(self, inputs: Inputs, state: State) -> Acted: ...


class Writer(Protocol):
    """Takes down what an actor lives through. One that is held elsewhere never gives an unroll back."""

    def write(self, acted: Acted, version: Version, step: EnvStep, inputs: Inputs) -> Unroll | None: ...


@dataclass(slots=True)
class Group:
    """Environments that step together: what they see, in which state, and who writes it down since when."""

    envs: Environments
    inputs: Inputs
    state: State
    writer: Writer
    since: float
    steps: int = 0  # in the present unroll
    handed: asyncio.Future[None] | None = None


class Actor:
    """Steps its environments: refresh the policy, collect an unroll, hand it over, until all steps are taken.

    It goes on while an unroll is on its way and waits only if the one before has not been taken yet. Two groups of
    environments take turns: one steps while the policy thinks about the other.

        group 0   step . . step . . step        . the policy acts
        group 1   . . step . . step . .
    """

    description: ClassVar = RoleDescription(lost="partial_unrolls")

    def __init__(
        self,
        ctx: Context,
        envs: Environments | Sequence[Environments],
        policy: Policy,
        insert: Insert | None,
        unroll_length: int,
        return_discount: float | None = None,
        before_unroll: Callable[[], None] | None = None,
        writer: Writer | None = None,
    ) -> None:
        """`envs`: all in one group, or several groups. `return_discount`: also tell the discounted return so far.

        `before_unroll`: called before every unroll, for what changes in the course of a run.
        `writer`: takes the steps instead of `insert`, whose unrolls are then not made here.
        """
        self._ctx, self._policy, self._insert, self._writer = ctx, policy, insert, writer
        self._envs = [envs] if isinstance(envs, Environments) else [*envs]
        self._length, self._return_discount, self._before_unroll = unroll_length, return_discount, before_unroll

    async def run(self) -> None:
        ctx, policy = self._ctx, self._policy
        await policy.refresh()
        groups = [await self._open(envs, number) for number, envs in enumerate(self._envs)]
        self._prepare()
        if len(groups) == 1:
            (group,) = groups
            while True:
                version = policy.version
                acted = await policy.act(group.inputs, group.state)
                if self._is_done(group):
                    await ctx.rest()
                await self._step(group, acted, version)
        asked = [ctx.ahead(self._ask(group)) for group in groups]
        playing = dict(enumerate(groups))
        while playing:
            for number, group in [*playing.items()]:
                acted, version = await ctx.wait(policy.name, asked[number])
                if self._is_done(group):
                    del playing[number]
                    continue
                await self._step(group, acted, version)
                asked[number] = ctx.ahead(self._ask(group))
                # Let the question leave before the next group's step blocks this process.
                await asyncio.sleep(0)
        await ctx.rest()

    def _is_done(self, group: Group) -> bool:
        """Whether no more unrolls may be begun. To ask for actions first tells a writer elsewhere of the last step."""
        return group.steps == 0 and self._ctx.spent

    async def close(self) -> None:
        for envs in self._envs:
            envs.close()

    async def _open(self, envs: Environments, number: int) -> Group:
        async with self._ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(self._ctx.seed(f"envs {number}" if number else "envs"))
        inputs, state = first_inputs(obs, envs), self._policy.initial_state(envs.num_envs)
        writer = self._writer or UnrollWriter(self._length, inputs, state, self._return_discount)
        return Group(envs, inputs, state, writer, self._ctx.now())

    async def _ask(self, group: Group) -> tuple[Acted, Version]:
        version = self._policy.version
        return await self._policy.act(group.inputs, group.state), version

    async def _step(self, group: Group, acted: Acted, version: Version) -> None:
        ctx, envs = self._ctx, group.envs
        group.steps = (group.steps + 1) % self._length
        async with ctx.work("env_step", items=envs.num_envs):
            step = envs.step(acted.actions)
            ctx.took(step.taken)
        for episode in step.episodes:
            ctx.episode(episode)
        group.inputs, group.state = next_inputs(step, acted.actions), acted.state
        unroll = group.writer.write(acted, version, step, group.inputs)
        if unroll is not None:
            await self._hand_over(group, unroll)

    async def _hand_over(self, group: Group, unroll: Unroll) -> None:
        assert self._insert is not None
        ctx, made = self._ctx, self._ctx.now()
        if group.handed is not None:
            await ctx.wait(self._insert.name, group.handed)
        group.handed = ctx.ahead(self._insert(unroll))
        # Who waits for longer than an unroll takes is not in a hurry: what was asked for before is old by now.
        await self._policy.refresh(anew=ctx.now() - made > made - group.since)
        self._prepare()
        group.since = ctx.now()

    def _prepare(self) -> None:
        if self._before_unroll is not None:
            self._before_unroll()
