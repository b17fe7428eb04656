"""MixedSource: batches from several replays, such as the agent's own and demonstrations."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import Draw, Prioritise
from thespis.core.types import Array, ReplaySample, State
from thespis.experience.concat import concat_batches


class Origin(NamedTuple):
    """One of the replays: the probability that a sequence comes from it, and the edges to it."""

    chance: float
    sample: Draw
    prioritise: Prioritise | None


class PendingDraw(NamedTuple):
    """Pending calls, one per origin; None for an origin without a share. `shares`: `[batches, origins]`."""

    shares: Array
    calls: list[asyncio.Future[Any] | None]


class MixedSource:
    """Draws the origin of each sequence of a batch independently (R2D3).

    The shares of each origin are drawn first; one prefetched call per replay then samples its share of several batches.
    Priorities go back to the sequence's own replay. Importance weights are normalised within each replay.
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
        """`initial_state(n)`: the recurrent state of n demonstrations, which have no stored state.

        `chances`: probabilities of the origins at this time of the run, if they change.
        """
        self._ctx, self._origins, self._initial_state = ctx, origins, initial_state
        self._chances = chances or (lambda: [origin.chance for origin in origins])
        self._batch, self._batches = batch, batches
        self._rng = ctx.rng("mix")
        self._pending: PendingDraw | None = None
        self._ready: deque[tuple[Array, ReplaySample]] = deque()
        self._shares = np.zeros(len(origins), np.int64)
        self._taken = [0] * len(origins)
        self._sent: dict[int, asyncio.Future[None]] = {}

    async def next(self) -> ReplaySample:
        """Return the next batch, with its sequences grouped by origin."""
        if not self._ready:
            await self._receive(self._pending or self._request())
            self._pending = self._request()
            # Send the requests before the learner's work blocks this process.
            await asyncio.sleep(0)
        self._shares, batch = self._ready.popleft()
        self._ctx.record("replay/demo_share", self._shares[-1] / self._batch)
        return batch

    async def done(self, batch: ReplaySample, priorities: Array | None) -> None:
        """Send the priorities to the replays that the sequences came from."""
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
        """Cancel all pending calls."""
        for task in (*(self._pending.calls if self._pending else ()), *self._sent.values()):
            if task is not None:
                task.cancel()

    def _request(self) -> PendingDraw:
        shares = self._rng.multinomial(self._batch, self._chances(), self._batches)
        calls = [
            self._ctx.ahead(origin.sample(int(number))) if number else None
            for origin, number in zip(self._origins, shares.sum(0), strict=True)
        ]
        return PendingDraw(shares, calls)

    async def _receive(self, pending: PendingDraw) -> None:
        """Wait for the pending samples and cut them into batches."""
        drawn: list[Any] = [
            None if call is None else await self._ctx.wait(origin.sample.name, call)
            for origin, call in zip(self._origins, pending.calls, strict=True)
        ]
        for index, part in enumerate(drawn):
            if part is not None:
                self._taken[index] = part.env_steps_at_sample
                if self._initial_state is not None:
                    part.state = part.state or self._initial_state(len(part.keys))
                part.weights = part.weights / part.weights.max()
        ends = np.cumsum(pending.shares, 0)
        for shares, starts in zip(pending.shares, ends - pending.shares, strict=True):
            parts = zip(drawn, starts.tolist(), shares.tolist(), strict=True)
            batch = concat_batches([part.part(start, start + number) for part, start, number in parts if number])
            batch.env_steps_at_sample = sum(self._taken)
            self._ready.append((shares, batch))
