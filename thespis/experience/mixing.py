"""Batches from several replays: what the agent lived through, and what it was shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Draw, Prioritise
from thespis.core.types import Array, Drawn, State
from thespis.experience.joined import joined


class Origin(NamedTuple):
    """One of the replays: the chance of each sequence to come from it, and the edges to it."""

    chance: float
    sample: Draw
    prioritise: Prioritise | None


class Asked(NamedTuple):
    """Calls that are under way, one per origin; None where nothing is wanted. `shares`: `[batches, origins]`."""

    shares: Array
    calls: list[asyncio.Future[Any] | None]


class Mixed:
    """Batches whose every sequence comes from one of several replays, by chance and whatever the others do (R2D3).

    How many of a batch come from where is drawn first; then each replay is asked for its share of several batches in
    one call, always ahead. Priorities go back to where a sequence came from, importance weights are those within its
    replay.
    """

    def __init__(
        self,
        ctx: Context,
        origins: Sequence[Origin],
        batch: int,
        batches: int,
        initial_state: Callable[[int], State] | None = None,
        chances: Callable[[], Sequence[float]] | None = None,
    ) -> None:
        """`initial_state`: of so many sequences, for those that come without: nobody was in any state there.

        `chances`: of the origins at this time of the run, where these are not always the same.
        """
        self._ctx, self._origins, self._initial_state = ctx, origins, initial_state
        self._chances = chances or (lambda: [origin.chance for origin in origins])
        self._batch, self._batches = batch, batches
        self._rng = ctx.rng("mix")
        self._asked: Asked | None = None
        self._ready: deque[tuple[Array, Drawn]] = deque()
        self._shares = np.zeros(len(origins), np.int64)
        self._taken = [0] * len(origins)
        self._sent: dict[int, asyncio.Future[None]] = {}

    async def take(self) -> Drawn:
        """The next batch, with what is of one origin side by side, in the order of the origins."""
        if not self._ready:
            await self._receive(self._asked or self._ask())
            self._asked = self._ask()
            # Let the requests leave before the learner's work blocks this process.
            await asyncio.sleep(0)
        self._shares, batch = self._ready.popleft()
        self._ctx.record("replay/demo_share", self._shares[-1] / self._batch)
        return batch

    async def done(self, batch: Drawn, priorities: Array | None) -> None:
        if priorities is None:
            return
        cuts = np.cumsum(self._shares)[:-1]
        parts = zip(self._origins, np.split(batch.keys, cuts), np.split(priorities, cuts), strict=True)
        for index, (origin, keys, part) in enumerate(parts):
            if origin.prioritise is None or not len(keys):
                continue
            if index in self._sent:
                await self._ctx.wait(origin.prioritise.name, self._sent[index])
            self._sent[index] = self._ctx.ahead(origin.prioritise(keys, part))

    async def close(self) -> None:
        for task in (*(self._asked.calls if self._asked else ()), *self._sent.values()):
            if task is not None:
                task.cancel()

    def _ask(self) -> Asked:
        shares = self._rng.multinomial(self._batch, self._chances(), self._batches)
        calls = [
            self._ctx.ahead(origin.sample(int(number))) if number else None
            for origin, number in zip(self._origins, shares.sum(0), strict=True)
        ]
        return Asked(shares, calls)

    async def _receive(self, asked: Asked) -> None:
        """Wait for what was asked for, and make batches of it."""
        drawn: list[Any] = [
            None if call is None else await self._ctx.wait(origin.sample.name, call)
            for origin, call in zip(self._origins, asked.calls, strict=True)
        ]
        for index, part in enumerate(drawn):
            if part is not None:
                self._taken[index] = part.taken
                if self._initial_state is not None:
                    part.state = part.state or self._initial_state(len(part.keys))
                part.weights = part.weights / part.weights.max()
        ends = np.cumsum(asked.shares, 0)
        for shares, starts in zip(asked.shares, ends - asked.shares, strict=True):
            parts = zip(drawn, starts.tolist(), shares.tolist(), strict=True)
            batch = joined([part.part(start, start + number) for part, start, number in parts if number])
            batch.taken = sum(self._taken)
            self._ready.append((shares, batch))
