"""A policy that acts in the actor's own process, on weights it pulls."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from thespis.runtime.context import Context
from thespis.types import Acted, Array, Inputs, State, Version, Versioned

if TYPE_CHECKING:
    from thespis.networks.acting import Stepper


class Pull(Protocol):
    """The edge to a weight store: newer weights, or None."""

    def __call__(self, newer_than: Version | None, /) -> Awaitable[Versioned | None]: ...


class LocalPolicy:
    """Acts with one version until `refresh`; an actor that refreshes between unrolls never mixes two in one."""

    def __init__(self, ctx: Context, stepper: Stepper, pull: Pull) -> None:
        self._ctx, self._stepper, self._pull = ctx, stepper, pull
        self._version: Version | None = None

    @property
    def version(self) -> Version:
        assert self._version is not None, "refresh comes before acting"
        return self._version

    def initial_state(self, batch: int) -> State:
        return self._stepper.initial_state(batch)

    async def refresh(self) -> None:
        """Adopt the newest weights; the first time, wait until there are any."""
        newer = await self._pull(self._version)
        if newer is not None and (self._version is None or newer.version > self._version):
            self._stepper.load(newer.weights)
            self._version = newer.version

    def explore(self, epsilon: float | Array) -> None:
        """Set how often action values are not followed, for all environments or for each."""
        self._stepper.explore(epsilon)

    async def act(self, inputs: Inputs, state: State, greedy: bool = False) -> Acted:
        async with self._ctx.work("inference", items=len(inputs.first)):
            return self._stepper.act(inputs, state, greedy)
