"""Actor: vector environment × policy → writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from thespis.core.context import Context
from thespis.core.edges import Insert
from thespis.core.service import RoleDescription
from thespis.core.types import Inputs, PolicyOutput, State, Unroll, Version
from thespis.envs.autoreset import Environments, EnvStep
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.experience.stepping import take_step
from thespis.experience.writers import UnrollWriter


class ActorPolicy(Protocol):
    """The policy of an actor, in the actor's own process or behind an inference edge."""

    name: str
    """The peer an actor waits for while it waits for actions."""

    @property
    def version(self) -> Version:
        """Version of the weights that act."""

    def initial_state(self, batch: int) -> State:
        """Recurrent state of `batch` environments at the start of their episodes."""

    async def refresh(self, skip_prefetch: bool = False) -> None:
        """Load newer weights. `skip_prefetch`: ignore an earlier prefetch and pull again."""

    async def act(self, inputs: Inputs, state: State) -> PolicyOutput:
        """Choose actions for `inputs`."""


class Writer(Protocol):
    """Receives an actor's steps. A writer in another process returns no unrolls here."""

    def write(self, acted: PolicyOutput, version: Version, step: EnvStep, inputs: Inputs) -> Unroll | None:
        """Add one step; returns the unroll that it completes, if any."""


@dataclass(slots=True)
class Group:
    """Environments that step together, with their inputs, recurrent state and writer.

    `since`: time at which the current unroll started. `handed`: the insert under way, if any.
    """

    envs: Environments
    inputs: Inputs
    state: State
    writer: Writer
    since: float
    steps: int = 0  # in the present unroll
    handed: asyncio.Future[None] | None = None


class Actor:
    """Steps environments: refresh the policy, collect an unroll, insert it, until the step budget is spent.

    Each insert overlaps the next unroll; the actor waits only while the previous insert is still pending. Two groups of
    environments alternate: one group steps while the policy computes actions for the other.

        group 0   step . . step . . step        . the policy acts
        group 1   . . step . . step . .
    """

    description: ClassVar = RoleDescription(lost="partial_unrolls")

    def __init__(
        self,
        ctx: Context,
        envs: Environments | Sequence[Environments],
        policy: ActorPolicy,
        insert: Insert | None,
        unroll_length: int,
        return_discount: float | None = None,
        before_unroll: Callable[[], None] | None = None,
        writer: Writer | None = None,
    ) -> None:
        """`envs`: one group, or several groups. `return_discount`: also write discounted returns into each unroll.

        `before_unroll`: called before every unroll, for example to update exploration.
        `writer`: receives the steps instead of an `UnrollWriter`; the actor then inserts no unrolls itself.
        """
        self._ctx, self._policy, self._insert, self._writer = ctx, policy, insert, writer
        self._envs = [envs] if isinstance(envs, Environments) else [*envs]
        self._length, self._return_discount, self._before_unroll = unroll_length, return_discount, before_unroll

    async def run(self) -> None:
        """Collect unrolls until the step budget is spent, then wait for the end of the run."""
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
                    await ctx.wait_for_end()
                await self._step(group, acted, version)
        pending = [ctx.ahead(self._request(group)) for group in groups]
        playing = dict(enumerate(groups))
        while playing:
            for number, group in [*playing.items()]:
                acted, version = await ctx.wait(policy.name, pending[number])
                if self._is_done(group):
                    del playing[number]
                    continue
                await self._step(group, acted, version)
                pending[number] = ctx.ahead(self._request(group))
                # Send the request before the next group's step blocks this process.
                await asyncio.sleep(0)
        await ctx.wait_for_end()

    def _is_done(self, group: Group) -> bool:
        """Whether the group may start no further unroll.

        The actor checks this after it requests actions, because that request carries the last step to a remote writer.
        """
        return group.steps == 0 and self._ctx.steps_exhausted

    async def close(self) -> None:
        """Close all environments."""
        for envs in self._envs:
            envs.close()

    async def _open(self, envs: Environments, number: int) -> Group:
        async with self._ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(self._ctx.seed(f"envs {number}" if number else "envs"))
        inputs, state = first_inputs(obs, envs), self._policy.initial_state(envs.num_envs)
        writer = self._writer or UnrollWriter(self._length, inputs, state, self._return_discount)
        return Group(envs, inputs, state, writer, self._ctx.now())

    async def _request(self, group: Group) -> tuple[PolicyOutput, Version]:
        version = self._policy.version
        return await self._policy.act(group.inputs, group.state), version

    async def _step(self, group: Group, acted: PolicyOutput, version: Version) -> None:
        group.steps = (group.steps + 1) % self._length
        step = await take_step(self._ctx, group.envs, acted.actions)
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
        # After a wait longer than an unroll the prefetched weights are old, so pull again.
        await self._policy.refresh(skip_prefetch=ctx.now() - made > made - group.since)
        self._prepare()
        group.since = ctx.now()

    def _prepare(self) -> None:
        if self._before_unroll is not None:
            self._before_unroll()
