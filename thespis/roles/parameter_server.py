"""ParameterServer: one shard of the parameters, its optimiser, and the rule by which gradients are applied."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from thespis.algorithms.updates.flat import Flat, build_flat, decayed
from thespis.core.budget import Budget, Progress
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.finite_weights import CHECK_SECONDS, check_finite_weights
from thespis.core.payloads import GradientMessage
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, GradientMeta, ParameterLayout, ParameterSlice, Version
from thespis.exchange.compression import decompress


class PendingGradient(NamedTuple):
    """A gradient that waits for others, and its age in updates on arrival."""

    gradient: Array
    meta: GradientMeta
    behind: int


class ParameterServer:
    """A contiguous slice of the parameter vector. Workers push gradients and receive newer parameters.

    `mode`: async applies each gradient on arrival. sync waits for `quorum` gradients of the current version and applies
    their average; later gradients of that version are dropped. softsync averages every `quorum` gradients of any
    version, and no worker waits. stale bounds the age of a gradient: `refuse` drops gradients more than `max_staleness`
    updates behind; `wait` blocks a worker that is more than this many pushes ahead of the slowest.
    """

    description: ClassVar = RoleDescription(
        methods={
            "join": Method("weights", takes="initial weights", gives="weights"),
            "push": Method("gradients", takes="gradients", gives="weights"),
            "pull": Method("weights", gives="weights"),
        },
        publishes=True,
    )

    def __init__(
        self,
        ctx: Context,
        *,
        optimizer: OptimizerConfig,
        budget: Budget,
        mode: str = "async",
        quorum: int = 1,
        max_staleness: int = 0,
        when_stale: str = "refuse",
        staleness_aware: bool = False,
    ) -> None:
        """`staleness_aware`: divide the learning rate by the gradient's age in updates."""
        self._ctx, self._cfg, self._progress = ctx, optimizer, Progress(budget, ctx.now)
        self._mode, self._quorum, self._staleness_aware = mode, quorum, staleness_aware
        self._max_staleness = max_staleness if mode == "stale" and when_stale == "refuse" else None
        self._max_ahead = max_staleness if mode == "stale" and when_stale == "wait" else None
        self._values: Array | None = None
        self._optimizer: Flat | None = None
        self._layout: ParameterLayout = []
        self._updates = 0
        self._steps = 0
        self._applied: dict[int, tuple[int, int]] = {}
        self._clocks: dict[int, int] = {}
        self._pending: list[PendingGradient] = []
        self._served: ParameterSlice | None = None
        self._checked = ctx.now()
        self._turn = asyncio.Lock()
        self._begun, self._round, self._moved = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse settings with which a worker would wait forever, or no gradient would be applied."""
        quorum, workers = settings.get("quorum", 1), sum(edge.method == "push" for edge in incoming)
        if not workers:
            raise ThespisError(
                f"{name}: no worker pushes gradients, so there would be no update; use at least one worker"
            )
        if quorum < 1:
            raise ThespisError(f"{name}: an update needs at least 1 gradient, not {quorum}; use fewer backup workers")
        if settings.get("mode") == "sync" and quorum > workers:
            raise ThespisError(
                f"{name}: each update waits for {quorum} gradients but only {workers} workers push, so the first would "
                "wait forever; use more workers or a smaller barrier"
            )
        if settings.get("max_staleness", 0) < 0:
            raise ThespisError(f"{name}: staleness must be at least 0 updates")

    @property
    def version(self) -> Version:
        """Version of the current parameters."""
        return Version(self._ctx.identity.epoch, self._updates)

    # -- edges ------------------------------------------------------------------------------------

    async def join(self, worker: int, values: Array, layout: ParameterLayout) -> tuple[ParameterSlice, int]:
        """Register a worker and return the current parameters. The first worker's values initialise them.

        Also returns the worker's initial push count: that of the slowest worker, so that a newcomer is never ahead.
        """
        if self._values is None:
            self._values, self._layout = np.array(values, np.float32), layout
            self._optimizer = self._optimizer or build_flat(self._cfg, len(values))
            self._begun.set()
        others = [clock for index, clock in self._clocks.items() if index != worker]
        self._clocks[worker] = min(others, default=0)
        self._announce()
        return self._slice(), self._clocks[worker]

    async def pull(self, newer_than: Version | None) -> ParameterSlice | None:
        """The parameters, or None if the caller has this version. Waits only before the first join."""
        if newer_than is None:
            await self._begun.wait()
        if self._values is None:
            return None
        return self._slice() if newer_than is None or self.version > newer_than else None

    async def push(self, gradient: GradientMessage, meta: GradientMeta) -> ParameterSlice | None:
        """Handle a gradient by the rule of the mode, and return the parameters after it.

        None: this shard died before its first checkpoint and holds no parameters; the worker's `join` sends its copy.
        """
        if self._values is None:
            self._ctx.count("dropped/homeless_gradients")
            return None
        if meta.number <= self._last(meta):
            # An earlier incarnation of this shard applied it, and its response was lost.
            self._ctx.count("dropped/repeated_gradients")
            return self._slice()
        async with self._turn, self._ctx.work("apply", items=gradient.size):
            barrier = self._take(decompress(gradient), meta)
        if barrier is not None:
            await barrier.wait()
        while self._max_ahead is not None and meta.clock - min(self._clocks.values()) > self._max_ahead:
            await self._moved.wait()
        return self._slice()

    # -- gradients --------------------------------------------------------------------------------

    def _take(self, gradient: Array, meta: GradientMeta) -> asyncio.Event | None:
        """Drop, keep or apply a gradient; returns the event that its worker must wait for, if any."""
        self._steps += meta.steps
        self._clocks[meta.worker] = meta.clock
        self._announce()
        # After a shard was restored to an earlier update, gradients may be ahead of it.
        behind = max(0, self._updates - meta.computed_at.update)
        if self._mode == "sync":
            if meta.computed_at != self.version:
                self._drop("late_gradients", meta)
                return None
            self._supersede(meta.worker)
        elif self._max_staleness is not None and behind > self._max_staleness:
            self._drop("stale_gradients", meta)
            return None
        self._pending.append(PendingGradient(gradient, meta, behind))
        if len(self._pending) == self._quorum:
            self._apply()
            return None
        if self._mode != "sync":
            return None
        there = {pending.meta.worker for pending in self._pending}
        missing = sorted(set(self._clocks) - there)
        self._ctx.waiting = f"a gradient of worker {', '.join(map(str, missing))}"
        return self._round

    def _supersede(self, worker: int) -> None:
        """Drop the pending gradient of a worker's earlier incarnation in favour of the new one."""
        for pending in [pending for pending in self._pending if pending.meta.worker == worker]:
            self._pending.remove(pending)
            self._drop("superseded_gradients", pending.meta)

    def _drop(self, why: str, meta: GradientMeta) -> None:
        self._ctx.count(f"dropped/{why}")
        self._note(meta)

    def _apply(self) -> None:
        """Make one update from the weighted average of the pending gradients."""
        assert self._values is not None and self._optimizer is not None
        pending, self._pending = self._pending, []
        self._ctx.waiting = None
        if self._mode == "sync":
            pending.sort(key=lambda each: each.meta.worker)  # arrival order must not change the rounding
        behind = sum(each.behind for each in pending) / len(pending)
        rate = self._cfg.learning_rate
        if self._cfg.anneal:
            rate = decayed(rate, self._progress.fraction(self._steps))
        if self._staleness_aware:
            # The rate only: optimiser statistics of a scaled gradient would undo the division.
            rate /= max(1.0, behind)
        self._optimizer.step(self._values, _average(pending), rate)
        if self._ctx.now() - self._checked >= CHECK_SECONDS:
            self._checked = self._ctx.now()
            check_finite_weights({"values": self._values}, f"{self._ctx.identity.role} {self._ctx.identity.index}")
        self._updates += 1
        self._served = None
        for each in pending:
            self._note(each.meta)
            self._ctx.lag(np.array([each.behind]), weight=each.meta.weight or 1.0)
        if self._ctx.identity.index == 0:  # count an update of all shards once
            self._ctx.count("updates")
            self._ctx.record("train/learning_rate", rate)
        self._round.set()
        self._round = asyncio.Event()

    def _announce(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _slice(self) -> ParameterSlice:
        """A copy of the parameters, shared by all callers between two updates."""
        if self._served is None or self._served.version != self.version:
            assert self._values is not None
            self._served = ParameterSlice(self.version, self._values.copy())
        return self._served

    def _last(self, meta: GradientMeta) -> int:
        """Number of the last gradient counted from this incarnation of the worker."""
        incarnation, number = self._applied.get(meta.worker, (0, -1))
        return number if incarnation == meta.incarnation else -1

    def _note(self, meta: GradientMeta) -> None:
        self._applied[meta.worker] = (meta.incarnation, meta.number)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Parameters, optimiser state, and each worker's last gradient, so that a repeat is recognised."""
        values = {
            "updates": self._updates,
            "steps": self._steps,
            "seconds": self._progress.seconds,
            "applied": [[worker, *last] for worker, last in self._applied.items()],
            "layout": self._layout,
        }
        if self._values is None or self._optimizer is None:
            return {}, values
        slots = {f"optimizer/{name}": slot.copy() for name, slot in self._optimizer.slots.items()}
        return {"values": self._values.copy(), **slots}, values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        if "values" not in arrays:
            return
        self._values = arrays["values"]
        self._optimizer = build_flat(self._cfg, len(self._values))
        for name, slot in self._optimizer.slots.items():
            slot[:] = arrays[f"optimizer/{name}"]
        self._updates, self._steps = values["updates"], values["steps"]
        self._progress.seconds = values.get("seconds", 0.0)  # older checkpoints have none
        self._applied = {worker: (incarnation, number) for worker, incarnation, number in values["applied"]}
        self._layout = [(name, list(shape)) for name, shape in values["layout"]]
        self._begun.set()


def _average(pending: list[PendingGradient]) -> Array:
    if len(pending) == 1:
        return pending[0].gradient
    total = sum(each.meta.weight for each in pending) or 1.0
    average = np.zeros_like(pending[0].gradient)
    for each in pending:
        average += each.meta.weight / total * each.gradient
    return average
