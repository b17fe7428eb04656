"""Queue: a bounded first-in-first-out buffer of experience between actors and a learner."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.opaque import from_opaque
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, item_from_arrays, item_to_arrays
from thespis.experience.limiters import QueueLimiter


class Queue:
    """First in, first out; each item is sampled once.

    Waits rather than drops: losing experience silently would change the algorithm.
    """

    description: ClassVar = RoleDescription(
        methods={"insert": Method("experience", takes="unroll"), "sample": Method("experience", gives="batch")},
        forwards=True,
        forgets=True,
        lost="queues",
        metrics="replay",
    )

    def __init__(self, ctx: Context, *, capacity: int) -> None:
        self._ctx, self._capacity, self._limiter = ctx, capacity, QueueLimiter(capacity)
        self._items: deque[Any] = deque()
        self._changed = asyncio.Condition()
        self._metrics = self.description.metrics

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse settings with which a role would wait forever."""
        capacity = settings["capacity"]
        if capacity < 1:
            raise ThespisError(f"{name}: capacity {capacity} holds nothing; raise it to at least 1")
        inserters = sum(edge.method == "insert" for edge in incoming)
        for edge in incoming:
            items = edge.demand.get("items", 1)
            if edge.demand.get("of_one_version") and items > inserters:
                raise ThespisError(
                    f"{name}: each update waits for {items} unrolls of one version but only {inserters} actors make "
                    "one each, so the first would wait forever; use more actors or a smaller barrier"
                )
            if items > capacity:
                raise ThespisError(
                    f"{name}: a batch of {items} never fits a queue of capacity {capacity}, so the learner would wait "
                    "forever; raise the queue's capacity or lower the batch"
                )
        if not inserters:
            raise ThespisError(f"{name}: no actor inserts, so sampling would wait forever; use at least one actor")

    async def insert(self, item: Any) -> None:
        """Store an item; waits while the queue is full."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._limiter.may_insert(len(self._items), 0, 1))
            self._items.append(item)
            self._ctx.count(f"{self._metrics}/inserted")
            self._note()

    async def sample(self, items: int) -> list[Any]:
        """Remove and return the oldest `items` items; waits until there are enough."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._limiter.may_sample(len(self._items), 0, items))
            taken = [self._items.popleft() for _ in range(items)]
            self._ctx.count(f"{self._metrics}/sampled", items)
            self._note()
            return taken

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All stored items, as arrays."""
        arrays: dict[str, Array] = {}
        return arrays, {
            "items": [item_to_arrays(from_opaque(item), arrays, str(i)) for i, item in enumerate(self._items)]
        }

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        self._items = deque(item_from_arrays(plan, arrays) for plan in values["items"])

    def _note(self) -> None:
        self._ctx.record("queue/fill", len(self._items) / self._capacity)
        self._changed.notify_all()


class TrainBuffer(Queue):
    """A queue of labelled batches between Bellman updaters and trainers, with counters of its own."""

    description: ClassVar = replace(
        Queue.description,
        methods={
            "insert": Method("experience", takes="labelled batch"),
            "sample": Method("experience", gives="labelled batch"),
        },
        metrics="label",
    )
