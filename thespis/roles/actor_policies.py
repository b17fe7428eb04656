"""Policies of an actor: local, on weights it pulls, or remote, behind an inference edge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Act, PullForActing
from thespis.core.payloads import CompressedWeights
from thespis.core.types import Array, Inputs, PolicyOutput, State, Stream, Version, VersionedWeights, unpack_version
from thespis.envs.autoreset import EnvStep
from thespis.exchange.weights import BrokenChain, WeightDecoder
from thespis.experience.trajectory_assembler import encode_step

if TYPE_CHECKING:
    from thespis.networks.policy_runner import PolicyRunner


class LocalPolicy:
    """Acts with one version until `refresh`, so an actor that refreshes between unrolls never mixes versions.

    `ahead`: each refresh also prefetches the weights for the next one. The actor then does not wait for a pull, and
    acts on weights that are one unroll older. Weights may arrive compressed; the messages say so.
    """

    name = "itself"

    def __init__(self, ctx: Context, runner: PolicyRunner, pull: PullForActing, ahead: bool = False) -> None:
        self._ctx, self._runner, self._pull, self._ahead = ctx, runner, pull, ahead
        self._version: Version | None = None
        self._decoder: WeightDecoder | None = None
        self._prefetched: asyncio.Future[VersionedWeights | CompressedWeights | None] | None = None

    @property
    def version(self) -> Version:
        """Version of the weights that act."""
        assert self._version is not None, "call refresh before acting"
        return self._version

    def initial_state(self, batch: int) -> State:
        """Recurrent state of `batch` environments at the start of their episodes."""
        return self._runner.initial_state(batch)

    async def refresh(self, skip_prefetch: bool = False) -> None:
        """Load the newest weights; the first call waits for them. `skip_prefetch`: ignore the prefetched weights."""
        prefetched = None if skip_prefetch else self._prefetched
        newer = await (self._pull(self._version) if prefetched is None else self._ctx.wait(self._pull.name, prefetched))
        if newer is not None and self._acts_before(newer.version):
            weights = newer if isinstance(newer, VersionedWeights) else await self._decompress(newer)
            if self._acts_before(weights.version):
                self._runner.load(weights.weights)
                self._version = weights.version
        if self._ahead:
            self._prefetched = self._ctx.ahead(self._pull(self._version))

    def _acts_before(self, version: Version) -> bool:
        return self._version is None or version > self._version

    async def _decompress(self, message: CompressedWeights) -> VersionedWeights:
        """Decode a message; if it does not fit the weights that act, pull whole ones instead."""
        if self._decoder is None:
            self._decoder = WeightDecoder(self._runner.layout)
        try:
            async with self._ctx.work("decompress", items=self._runner.layout.size):
                return self._decoder.decode(message)
        except BrokenChain:
            self._ctx.count("weights/broken_chains")
        whole = await self._pull(None)
        assert isinstance(whole, CompressedWeights)
        async with self._ctx.work("decompress", items=self._runner.layout.size):
            return self._decoder.decode(whole)

    def explore(self, epsilon: float | Array) -> None:
        """Set epsilon of epsilon-greedy exploration, for all environments or for each."""
        self._runner.explore(epsilon)

    async def act(self, inputs: Inputs, state: State, greedy: bool = False) -> PolicyOutput:
        """Choose actions for `inputs`. `greedy`: without exploration."""
        async with self._ctx.work("inference", items=len(inputs.first)):
            return self._runner.act(inputs, state, greedy)


class RemotePolicy:
    """Acts through an inference server. Each request carries the result of the step before.

    The server keeps the recurrent state. The state that the actor holds is only the indices of its environments.
    """

    def __init__(self, ctx: Context, act: Act) -> None:
        me = ctx.identity
        self._act, self._stream = act, Stream((me.role, me.index), me.incarnation)
        self.name = act.name
        self.version = Version(0, 0)
        self._environments = 0
        self._requests: dict[int, int] = {}
        self._steps: dict[int, EnvStep] = {}

    def initial_state(self, batch: int) -> State:
        """Indices of `batch` more environments."""
        start = self._environments
        self._environments += batch
        return (np.arange(start, start + batch),)

    async def refresh(self, skip_prefetch: bool = False) -> None:
        """Do nothing: the server loads the newest weights."""

    async def act(self, inputs: Inputs, state: State) -> PolicyOutput:
        """Send observations and the last step's result; wait for actions."""
        start = int(state[0][0])
        number = self._requests.get(start, 0)
        self._requests[start] = number + 1
        response = await self._act(*encode_step(self._stream, start, number, inputs, self._steps.get(start)))
        self.version = unpack_version(response.version)
        return PolicyOutput(response.actions, response.logp, state)

    def write(self, acted: PolicyOutput, version: Version, step: EnvStep, inputs: Inputs) -> None:
        """Keep the step's result for the next request, which leaves before the next step."""
        self._steps[int(acted.state[0][0])] = step
