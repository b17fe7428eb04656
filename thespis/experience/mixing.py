"""Batches from two replays: what the agent lived through, and what it was shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from thespis.experience.sources import Draw, Prioritise
from thespis.runtime.context import Context
from thespis.types import Array, Inputs, Sequences, State, map_tree


class Origin(NamedTuple):
    """The edges to one of the replays."""

    sample: Draw
    prioritise: Prioritise | None


class Asked(NamedTuple):
    """A call to each replay that is under way; None if it was asked for nothing. `shown`: demonstrations per batch."""

    shown: list[int]
    calls: list[asyncio.Task[Any] | None]


class Mixed:
    """Batches whose every sequence is a demonstration with probability `ratio`, whatever the others are (R2D3).

    How many of a batch are demonstrations is drawn first; then each replay is asked for its share of several batches
    in one call, always ahead. Priorities go back to where a sequence came from, importance weights are those within
    its replay. Environment steps are counted by the agent's replay alone.
    """

    def __init__(
        self,
        ctx: Context,
        lived: Origin,
        shown: Origin,
        ratio: float,
        batch: int,
        batches: int,
        initial_state: Callable[[int], State],
    ) -> None:
        """`initial_state`: of so many sequences, for demonstrations: no actor was in any state there."""
        self._ctx, self._origins, self._initial_state = ctx, (lived, shown), initial_state
        self._ratio, self._batch, self._batches = ratio, batch, batches
        self._rng = ctx.rng("mix")
        self._asked: Asked | None = None
        self._ready: deque[tuple[int, list[Sequences]]] = deque()
        self._lived = self._taken = 0
        self._sent: dict[int, asyncio.Task[None]] = {}

    async def take(self) -> Sequences:
        """The next batch: sequences of the agent first, then demonstrations."""
        if not self._ready:
            await self._receive(self._asked or self._ask())
            self._asked = self._ask()
            # Let the requests leave before the learner's work blocks this process.
            await asyncio.sleep(0)
        self._lived, parts = self._ready.popleft()
        self._ctx.record("replay/demo_share", 1.0 - self._lived / self._batch)
        return beside(parts)

    async def settle(self, batch: Sequences) -> None:
        if batch.priorities is None:
            return
        for index, cut in enumerate((slice(0, self._lived), slice(self._lived, None))):
            prioritise, keys = self._origins[index].prioritise, batch.keys[cut]
            if prioritise is None or not len(keys):
                continue
            if index in self._sent:
                await self._ctx.wait(prioritise.name, self._sent[index])
            self._sent[index] = self._ctx.ahead(prioritise(keys, batch.priorities[cut]))

    async def close(self) -> None:
        for task in (*(self._asked.calls if self._asked else ()), *self._sent.values()):
            if task is not None:
                task.cancel()

    def _ask(self) -> Asked:
        shown = self._rng.binomial(self._batch, self._ratio, self._batches)
        items = (self._batch * self._batches - int(shown.sum()), int(shown.sum()))
        calls = [
            self._ctx.ahead(origin.sample(number)) if number else None
            for origin, number in zip(self._origins, items, strict=True)
        ]
        return Asked(shown.tolist(), calls)

    async def _receive(self, asked: Asked) -> None:
        """Wait for what was asked for, and cut it into batches."""
        drawn: list[Any] = [
            None if call is None else await self._ctx.wait(origin.sample.name, call)
            for origin, call in zip(self._origins, asked.calls, strict=True)
        ]
        if drawn[0] is not None:
            self._taken = drawn[0].taken
        if drawn[1] is not None:
            drawn[1].state, drawn[1].taken = self._initial_state(len(drawn[1].keys)), self._taken
        at = [0, 0]
        for demos in asked.shown:
            parts = []
            for index, number in enumerate((self._batch - demos, demos)):
                if number:
                    parts.append(drawn[index].part(at[index], at[index] + number))
                    at[index] += number
            self._ready.append((self._batch - demos, parts))


def beside(parts: list[Sequences]) -> Sequences:
    """Sequences of equal length as one batch; environment steps are those of the first."""
    if len(parts) == 1:
        return parts[0]

    def join(*leaves: Array) -> Array:
        return np.concatenate(leaves, axis=1)

    inputs = [part.inputs for part in parts]
    return Sequences(
        inputs=Inputs(
            obs=map_tree(join, *(part.obs for part in inputs)),
            first=join(*(part.first for part in inputs)),
            last_action=join(*(part.last_action for part in inputs)),
            last_reward=join(*(part.last_reward for part in inputs)),
        ),
        actions=join(*(part.actions for part in parts)),
        returns=join(*(part.returns for part in parts)),
        discounts=join(*(part.discounts for part in parts)),
        ahead=join(*(part.ahead for part in parts)),
        valid=join(*(part.valid for part in parts)),
        versions=join(*(part.versions for part in parts)),
        state=tuple(np.concatenate(leaves) for leaves in zip(*(part.state for part in parts), strict=True)),
        weights=np.concatenate([part.weights for part in parts]),
        keys=np.concatenate([part.keys for part in parts]),
        taken=parts[0].taken,
    )
