"""Replay: stores the steps of many streams and samples them repeatedly, as transitions or sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, ReplaySample, Stream, Unroll
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.samplers import Sampler
from thespis.experience.step_storage import StepStorage
from thespis.experience.window import Window


class StreamState(NamedTuple):
    """An open stream: the rows of its last observations, and the rows whose windows are incomplete."""

    incarnation: int
    heads: Array
    pending: Array


class Replay:
    """Stores the newest steps and samples items; the limiter keeps samples per insert within its band.

    An item is a step at which a complete window starts. Its key is its row number, which is never reused. Inserted and
    sampled count items, so steps without a complete window do not count.
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
        steps: StepStorage,
        window: Window,
        sampler: Sampler,
        limiter: SamplesPerInsert,
        shape_rewards: Callable[[Array], Array],
        max_times: int = 0,
    ) -> None:
        """`max_times`: draws after which an item is removed. Its key is then stale; its rows stay in storage."""
        self._ctx, self._steps, self._window, self._sampler, self._limiter = ctx, steps, window, sampler, limiter
        self._shape_rewards = shape_rewards
        self._rng = ctx.rng("sample")
        self._metrics = self.description.metrics
        self._streams: dict[tuple[str, int], StreamState] = {}
        self._times = np.zeros(steps.capacity, np.uint16)
        self._max_times = max_times
        self._left = 0  # remaining draws of all items, if draws are limited
        self._wanted = self._waiting = 0
        self._inserted = self._sampled = self._taken = 0
        self._changed = asyncio.Condition()

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse settings with which a role would wait forever."""
        capacity, limiter = settings["capacity"], settings["limiter"]
        inserts = [edge.demand["items"] for edge in incoming if edge.method == "insert"]
        if not inserts:
            raise ThespisError(f"{name}: no actor inserts, so sampling would wait forever; use at least one actor")
        if limiter.warm_up > capacity:
            raise ThespisError(
                f"{name}: warm-up {limiter.warm_up} exceeds capacity {capacity}, so sampling would wait forever; "
                "raise capacity or lower warm-up"
            )
        # Every stream has one insert whose windows are still open, and the one that completes them.
        if 2 * sum(inserts) > capacity:
            raise ThespisError(
                f"{name}: two unrolls of every actor are {2 * sum(inserts)} steps and overflow capacity {capacity}; "
                "raise capacity, or lower actors, environments or unroll length"
            )
        samples = [edge.demand["items"] for edge in incoming if edge.method == "sample"]
        limiter.validate(name, max(inserts), max(samples, default=1))

    async def insert(self, stream: Stream, unroll: Unroll) -> int:
        """Store an unroll; waits while the limiter requires. Returns the number of items inserted so far."""
        async with self._changed:
            most = unroll.valid.size + len(self._pending(stream))
            await self._changed.wait_for(lambda: self._may_insert(most))
            async with self._ctx.work("insert", items=unroll.valid.size):
                self._write(stream, unroll)
            self._changed.notify_all()
            return self._inserted

    async def sample(self, items: int) -> ReplaySample:
        """Draw `items` items; waits while the limiter requires."""
        async with self._changed:
            await self._wait_to_sample(items)
            async with self._ctx.work("sample", items=items):
                drawn = self._draw(items)
            self._changed.notify_all()
            return drawn

    async def prioritise(self, keys: Array, priorities: Array) -> None:
        """Set priorities of items. Overwritten items are ignored and counted."""
        slots = keys % self._steps.capacity
        there = (keys >= self._steps.oldest) & self._sampler.holds(slots)
        self._sampler.prioritise(slots[there], priorities[there])
        stale = len(keys) - int(np.count_nonzero(there))
        if stale:
            self._ctx.count("dropped/stale_priorities", stale)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything except open streams: a restored replay opens new ones."""
        steps = self._steps
        arrays = {f"steps/{name}": column for name, column in steps.state().items()}
        arrays |= {f"sampler/{name}": column for name, column in self._sampler.state().items()}
        arrays |= {f"window/{name}": column for name, column in self._window.state().items()}
        arrays["times"] = self._times[: min(steps.written, steps.capacity)]
        counts = {"inserted": self._inserted, "sampled": self._sampled, "taken": self._taken}
        return arrays, {"written": steps.written, **counts}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
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
        self._wanted, self._waiting = max(self._wanted, items), self._waiting + 1
        self._changed.notify_all()
        try:
            await self._changed.wait_for(lambda: self._may_sample(items))
        finally:
            self._waiting -= 1

    def _may_sample(self, items: int) -> bool:
        enough = self._left >= items if self._max_times else self._sampler.items > 0
        return enough and self._limiter.may_sample(self._inserted, self._sampled, items)

    def _may_insert(self, items: int) -> bool:
        # Overwritten items may leave too few draws for a waiting sample: then admit inserts outside the band.
        starved = bool(self._max_times and self._waiting) and self._left < self._wanted
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
        self._streams[stream.who] = StreamState(stream.incarnation, numbers[-1], waiting)
        self._inserted += len(items)
        self._ctx.count(f"{self._metrics}/inserted", len(items))
        self._taken += int(np.count_nonzero(unroll.valid))
        self._ctx.record(f"{self._metrics}/fill", min(steps.written, steps.capacity) / steps.capacity)
        if self._taken:
            self._ctx.record(f"{self._metrics}/bytes_per_transition", self._row_bytes * steps.written / self._taken)

    @property
    def _row_bytes(self) -> float:
        """All memory of this role, per row. Not every row is a step: some hold last observations."""
        parts = (self._steps.nbytes, self._sampler.nbytes, self._window.nbytes, self._times.nbytes)
        return sum(parts) / self._steps.capacity

    def _resume(self, stream: Stream, rows: int) -> tuple[Array | None, Array]:
        """The rows this unroll continues, or None if writing `rows` more would overwrite them."""
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

    def _draw(self, items: int) -> ReplaySample:
        slots, weights = self._pick(items)
        self._sampled += items
        self._ctx.count(f"{self._metrics}/sampled", items)
        return self._window.batch(self._steps, self._steps.number(slots), weights, self._inserted)

    def _pick(self, items: int) -> tuple[Array, Array]:
        """Slots and importance weights of `items` draws. Draws beyond an item's limit are repeated."""
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
    """For each of `slots`, how often it occurs earlier in the array, int64 `[N]`."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    found = np.empty(len(slots), np.int64)
    found[order] = np.arange(len(slots)) - np.repeat(starts, np.diff(np.r_[starts, len(slots)]))
    return found


_MOST_TIMES = 65_535
"""Highest draw count per item."""
_NONE = np.empty(0, np.int64)
