"""Policies that an actor can have: one in its own process, on weights it pulls, or one that acts elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Act, Pull
from thespis.core.types import Acted, Array, Inputs, State, Stream, Version, Versioned, unpacked
from thespis.envs.autoreset import EnvStep
from thespis.experience.seats import tell

if TYPE_CHECKING:
    from thespis.networks.acting import Stepper


class LocalPolicy:
    """Acts with one version until `refresh`; an actor that refreshes between unrolls never mixes two in one.

    `ahead`: each refresh also asks for the weights that the next one adopts. An actor then need not wait for them, and
    they are those of an unroll earlier.
    """

    name = "itself"

    def __init__(self, ctx: Context, stepper: Stepper, pull: Pull, ahead: bool = False) -> None:
        self._ctx, self._stepper, self._pull, self._ahead = ctx, stepper, pull, ahead
        self._version: Version | None = None
        self._asked: asyncio.Future[Versioned | None] | None = None

    @property
    def version(self) -> Version:
        assert self._version is not None, "refresh comes before acting"
        return self._version

    def initial_state(self, batch: int) -> State:
        return self._stepper.initial_state(batch)

    async def refresh(self, anew: bool = False) -> None:
        """Adopt the newest weights; the first time, wait until there are any. `anew`: not those asked for before."""
        asked = None if anew else self._asked
        newer = await (self._pull(self._version) if asked is None else self._ctx.wait(self._pull.name, asked))
        if newer is not None and (self._version is None or newer.version > self._version):
            self._stepper.load(newer.weights)
            self._version = newer.version
        if self._ahead:
            self._asked = self._ctx.ahead(self._pull(self._version))

    def explore(self, epsilon: float | Array) -> None:
        """Set how often action values are not followed, for all environments or for each."""
        self._stepper.explore(epsilon)

    async def act(self, inputs: Inputs, state: State, greedy: bool = False) -> Acted:
        async with self._ctx.work("inference", items=len(inputs.first)):
            return self._stepper.act(inputs, state, greedy)


class RemotePolicy:
    """Acts in another process, which also keeps what came of it: that goes with the next question.

    The state that an actor holds for it is only where the real one is kept: the numbers of its environments.
    """

    def __init__(self, ctx: Context, act: Act) -> None:
        me = ctx.identity
        self._act, self._stream = act, Stream((me.role, me.index), me.incarnation)
        self.name = act.name
        self.version = Version(0, 0)
        self._environments = 0
        self._asked: dict[int, int] = {}
        self._steps: dict[int, EnvStep] = {}

    def initial_state(self, batch: int) -> State:
        """Places for `batch` more environments."""
        start = self._environments
        self._environments += batch
        return (np.arange(start, start + batch),)

    async def refresh(self, anew: bool = False) -> None:
        """Whoever acts has the newest weights."""

    async def act(self, inputs: Inputs, state: State) -> Acted:
        start = int(state[0][0])
        number = self._asked.get(start, 0)
        self._asked[start] = number + 1
        answer = await self._act(*tell(self._stream, start, number, inputs, self._steps.get(start)))
        self.version = unpacked(answer.version)
        return Acted(answer.actions, answer.logp, state)

    def write(self, acted: Acted, version: Version, step: EnvStep, inputs: Inputs) -> None:
        """Remember what came of it until the next question, which is asked before the next step."""
        self._steps[int(acted.state[0][0])] = step
