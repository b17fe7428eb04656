"""ReplayTable: steps of many streams, sampled again and again as transitions or sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Drawn, Stream, Unroll
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.samplers import Sampler
from thespis.experience.steps import Steps
from thespis.experience.window import Window


class Open(NamedTuple):
    """A stream that goes on: the rows of its last observations, and those whose windows are not complete."""

    incarnation: int
    heads: Array
    pending: Array


class ReplayTable:
    """Keeps the newest steps and hands out items; the limiter holds samples per insert in its band.

    An item is a step where a complete window starts; its key is the number of its row, which no later row gets.
    Inserted and sampled count items, so steps of a stream that broke off before its window was complete count for
    nothing.
    """

    description: ClassVar = RoleDescription(
        methods={
            "insert": Method("experience", takes="unroll"),
            "sample": Method("experience", gives="batch"),
            "prioritise": Method("experience", takes="priorities"),
        },
        intake="replay/inserted",
        metrics="replay",
    )

    def __init__(
        self,
        ctx: Context,
        steps: Steps,
        window: Window,
        sampler: Sampler,
        limiter: SamplesPerInsert,
        shape_rewards: Callable[[Array], Array],
        max_times: int = 0,
    ) -> None:
        """`max_times`: draws after which an item is removed; its key is stale then, its rows stay with the steps."""
        self._ctx, self._steps, self._window, self._sampler, self._limiter = ctx, steps, window, sampler, limiter
        self._shape_rewards = shape_rewards
        self._rng = ctx.rng("sample")
        self._metrics = self.description.metrics
        self._streams: dict[tuple[str, int], Open] = {}
        self._times = np.zeros(steps.capacity, np.uint16)
        self._max_times = max_times
        self._left = 0  # draws that are left of all items, if these are limited
        self._asked = self._waiting = 0
        self._inserted = self._sampled = self._taken = 0
        self._changed = asyncio.Condition()

    @staticmethod
    def refuse(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Say no to settings with which somebody would wait for ever."""
        capacity, limiter = settings["capacity"], settings["limiter"]
        inserts = [edge.demand["items"] for edge in incoming if edge.method == "insert"]
        if not inserts:
            raise ThespisError(f"{name}: nobody inserts, so sampling would wait for ever; use at least one actor")
        if limiter.warm_up > capacity:
            raise ThespisError(
                f"{name}: warm-up {limiter.warm_up} exceeds capacity {capacity}, so sampling would wait for ever; "
                "raise capacity or lower warm-up"
            )
        # Every stream has one insert whose windows are still open, and the one that completes them.
        if 2 * sum(inserts) > capacity:
            raise ThespisError(
                f"{name}: two unrolls of every actor are {2 * sum(inserts)} steps and overflow capacity {capacity}; "
                "raise capacity, or lower actors, environments or unroll length"
            )
        samples = [edge.demand["items"] for edge in incoming if edge.method == "sample"]
        limiter.refuse(name, max(inserts), max(samples, default=1))

    async def insert(self, stream: Stream, unroll: Unroll) -> int:
        """Store an unroll; waits while the limiter says the learner is too far behind. Returns all items so far."""
        async with self._changed:
            most = unroll.valid.size + len(self._pending(stream))
            await self._changed.wait_for(lambda: self._may_insert(most))
            async with self._ctx.work("insert", items=unroll.valid.size):
                self._write(stream, unroll)
            self._changed.notify_all()
            return self._inserted

    async def sample(self, items: int) -> Drawn:
        """Draw `items` of them; waits until the limiter lets them go."""
        async with self._changed:
            await self._wait_to_sample(items)
            async with self._ctx.work("sample", items=items):
                drawn = self._draw(items)
            self._changed.notify_all()
            return drawn

    async def prioritise(self, keys: Array, priorities: Array) -> None:
        """Give items new priorities. Those that were overwritten since are ignored, and counted."""
        slots = keys % self._steps.capacity
        there = (keys >= self._steps.oldest) & self._sampler.holds(slots)
        self._sampler.prioritise(slots[there], priorities[there])
        stale = len(keys) - int(np.count_nonzero(there))
        if stale:
            self._ctx.count("dropped/stale_priorities", stale)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything but the streams: whoever goes on from this opens new ones."""
        steps = self._steps
        arrays = {f"steps/{name}": column for name, column in steps.state().items()}
        arrays |= {f"sampler/{name}": column for name, column in self._sampler.state().items()}
        arrays |= {f"window/{name}": column for name, column in self._window.state().items()}
        arrays["times"] = self._times[: min(steps.written, steps.capacity)]
        counts = {"inserted": self._inserted, "sampled": self._sampled, "taken": self._taken}
        return arrays, {"written": steps.written, **counts}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Array]] = {"steps": {}, "sampler": {}, "window": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            if rest:
                parts[part][rest] = array
        self._steps.restore(parts["steps"], values["written"])
        self._sampler.restore(parts["sampler"])
        self._window.restore(parts["window"])
        self._times[: len(arrays["times"])] = arrays["times"]
        self._inserted, self._sampled, self._taken = values["inserted"], values["sampled"], values["taken"]
        self._left = self._draws_left(np.arange(self._steps.capacity))

    def _pending(self, stream: Stream) -> Array:
        open_ = self._streams.get(stream.who)
        return open_.pending if open_ is not None and open_.incarnation == stream.incarnation else _NONE

    async def _wait_to_sample(self, items: int) -> None:
        self._asked, self._waiting = max(self._asked, items), self._waiting + 1
        self._changed.notify_all()
        try:
            await self._changed.wait_for(lambda: self._may_sample(items))
        finally:
            self._waiting -= 1

    def _may_sample(self, items: int) -> bool:
        enough = self._left >= items if self._max_times else self._sampler.items > 0
        return enough and self._limiter.may_sample(self._inserted, self._sampled, items)

    def _may_insert(self, items: int) -> bool:
        # Items that were overwritten before they were drawn often enough leave too few: then the band gives way.
        starved = bool(self._max_times and self._waiting) and self._left < self._asked
        return starved or self._limiter.may_insert(self._inserted, self._sampled, items)

    def _write(self, stream: Stream, unroll: Unroll) -> None:
        steps, opens = self._steps, self._steps.opens(unroll)
        most = steps.most(unroll, opens)
        if most > steps.capacity:
            raise ThespisError(
                f"an unroll of {most} rows does not fit a replay of {steps.capacity}; "
                "raise --replay.capacity or --replay.bytes"
            )
        self._forget(steps.lost(most))
        heads, pending = self._resume(stream, most)
        numbers = steps.write(unroll, heads, self._shape_rewards(unroll.rewards), opens)
        pending = np.concatenate([pending, self._window.opened(steps, unroll, numbers)])
        complete, waiting = self._window.sort(steps, pending)
        items = complete % steps.capacity
        self._sampler.add(items)
        if steps.layout.values and len(items):
            errors = self._window.errors(steps, complete)
            valued = ~np.isnan(errors)
            self._sampler.prioritise(items[valued], errors[valued])
        self._times[items] = 0
        self._left += len(items) * self._max_times
        self._streams[stream.who] = Open(stream.incarnation, numbers[-1], waiting)
        self._inserted += len(items)
        self._ctx.count(f"{self._metrics}/inserted", len(items))
        self._taken += int(np.count_nonzero(unroll.valid))
        self._ctx.record(f"{self._metrics}/fill", min(steps.written, steps.capacity) / steps.capacity)
        if self._taken:
            self._ctx.record(f"{self._metrics}/bytes_per_transition", self._row_bytes * steps.written / self._taken)

    @property
    def _row_bytes(self) -> float:
        """All memory that this role was given, per row. Not every row is a step: some hold last observations."""
        parts = (self._steps.nbytes, self._sampler.nbytes, self._window.nbytes, self._times.nbytes)
        return sum(parts) / self._steps.capacity

    def _resume(self, stream: Stream, rows: int) -> tuple[Array | None, Array]:
        """Where this unroll goes on from, if the rows there outlive the writing of so many others."""
        open_ = self._streams.get(stream.who)
        if open_ is None:
            return None, _NONE
        joined = open_.incarnation == stream.incarnation and bool(self._steps.whole(open_.heads, rows).all())
        whole = self._steps.whole(open_.pending, rows)
        pending = open_.pending[whole] if joined else _NONE
        if len(open_.pending) > len(pending):
            self._ctx.count("dropped/open_windows", len(open_.pending) - len(pending))
        return (open_.heads, pending) if joined else (None, _NONE)

    def _forget(self, slots: Array) -> None:
        if len(slots):
            gone = np.unique(slots[self._sampler.holds(slots)])
            if len(gone):
                self._ctx.record(f"{self._metrics}/times_sampled", float(self._times[gone].mean()), weight=len(gone))
            self._left -= self._draws_left(gone)
            self._sampler.remove(gone)

    def _draws_left(self, slots: Array) -> int:
        if not self._max_times:
            return 0
        held = slots[self._sampler.holds(slots)]
        return int(np.sum(self._max_times - self._times[held].astype(np.int64)))

    def _draw(self, items: int) -> Drawn:
        slots, weights = self._pick(items)
        self._sampled += items
        self._ctx.count(f"{self._metrics}/sampled", items)
        return self._window.batch(self._steps, self._steps.number(slots), weights, self._inserted)

    def _pick(self, items: int) -> tuple[Array, Array]:
        """Slots and importance weights of `items` draws. Where draws are limited, what exceeds them is drawn anew."""
        slots = self._sampler.draw(items, self._rng)
        if not self._max_times:
            self._note_draws(slots)
            return slots, self._sampler.weigh(slots)
        slots = slots[ranks(slots) < self._max_times - self._times[slots]]
        weights = self._sampler.weigh(slots)
        self._note_draws(slots)
        self._left -= len(slots)
        self._forget(slots[self._times[slots] >= self._max_times])
        if len(slots) == items:
            return slots, weights
        more, their_weights = self._pick(items - len(slots))
        return np.concatenate([slots, more]), np.concatenate([weights, their_weights])

    def _note_draws(self, slots: Array) -> None:
        each, number = np.unique(slots, return_counts=True)
        self._times[each] = np.minimum(self._times[each] + number, _MOST_TIMES)


def ranks(slots: Array) -> Array:
    """How often each of `slots` came before in the same array, int64 `[N]`."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    found = np.empty(len(slots), np.int64)
    found[order] = np.arange(len(slots)) - np.repeat(starts, np.diff(np.r_[starts, len(slots)]))
    return found


_MOST_TIMES = 65_535
"""As far as draws of one item are counted."""
_NONE = np.empty(0, np.int64)
