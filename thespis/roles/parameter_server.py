"""ParameterServer: one shard of the parameters, its optimiser, and the rule by which gradients take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from thespis.algorithms.updates.flat import Flat, build_flat, decayed
from thespis.core.budget import Budget, Spending
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.finite import CHECK_SECONDS, check_finite
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Layout, Slice, Stamp, Version
from thespis.exchange.precision import decode


class Pending(NamedTuple):
    """A gradient that waits for others, and how many updates its parameters were behind when it came."""

    gradient: Array
    stamp: Stamp
    behind: int


class ParameterServer:
    """A contiguous slice of the parameter vector. Gradients come in, newer parameters go back with the answer.

    `mode`: async applies each gradient as it comes. sync waits for `quorum` gradients of the present version and
    applies their average; whoever comes after that is late, and dropped. softsync averages every `quorum` gradients,
    whatever their versions, and nobody waits. stale bounds how old a gradient may be: `refuse` drops those more
    than `max_staleness` updates behind; `wait` holds back whoever is more pushes than that ahead of the slowest.
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
        """`staleness_aware`: divide the learning rate by how many updates the gradient is behind."""
        self._ctx, self._cfg, self._spending = ctx, optimizer, Spending(budget, ctx.now)
        self._mode, self._quorum, self._staleness_aware = mode, quorum, staleness_aware
        self._max_staleness = max_staleness if mode == "stale" and when_stale == "refuse" else None
        self._max_ahead = max_staleness if mode == "stale" and when_stale == "wait" else None
        self._values: Array | None = None
        self._optimizer: Flat | None = None
        self._layout: Layout = []
        self._updates = 0
        self._steps = 0
        self._applied: dict[int, tuple[int, int]] = {}
        self._clocks: dict[int, int] = {}
        self._pending: list[Pending] = []
        self._given: Slice | None = None
        self._checked = ctx.now()
        self._turn = asyncio.Lock()
        self._begun, self._round, self._moved = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @staticmethod
    def refuse(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Say no to settings with which somebody would wait for ever, or nothing would ever be applied."""
        quorum, workers = settings.get("quorum", 1), sum(edge.method == "push" for edge in incoming)
        if not workers:
            raise ThespisError(f"{name}: nobody pushes gradients, so there would be no update; use at least one worker")
        if quorum < 1:
            raise ThespisError(
                f"{name}: an update of {quorum} gradients is none; use fewer backup workers, or average at least 1"
            )
        if settings.get("mode") == "sync" and quorum > workers:
            raise ThespisError(
                f"{name}: each update waits for {quorum} gradients but only {workers} workers push, so the first would "
                "wait for ever; use more workers or a smaller barrier"
            )
        if settings.get("max_staleness", 0) < 0:
            raise ThespisError(f"{name}: no gradient is fresher than 0 updates; give a staleness of at least 0")

    @property
    def version(self) -> Version:
        return Version(self._ctx.identity.epoch, self._updates)

    # -- edges ------------------------------------------------------------------------------------

    async def join(self, worker: int, values: Array, layout: Layout) -> tuple[Slice, int]:
        """A worker begins. What holds here comes back; the very first worker's values are what everybody starts from.

        Also the clock to count pushes on from: that of the slowest, so that a newcomer is never ahead.
        """
        if self._values is None:
            self._values, self._layout = np.array(values, np.float32), layout
            self._optimizer = self._optimizer or build_flat(self._cfg, len(values))
            self._begun.set()
        others = [clock for index, clock in self._clocks.items() if index != worker]
        self._clocks[worker] = min(others, default=0)
        self._announce()
        return self._slice(), self._clocks[worker]

    async def pull(self, newer_than: Version | None) -> Slice | None:
        """The parameters, or None if the caller has them already. Waits only for the first ones there are."""
        if newer_than is None:
            await self._begun.wait()
        if self._values is None:
            return None
        return self._slice() if newer_than is None or self.version > newer_than else None

    async def push(self, wire: Array, stamp: Stamp) -> Slice | None:
        """Take a gradient by the rule of the mode, and answer with the parameters that hold then.

        None: this shard died before anything was saved, and holds nothing; `join` gives it the worker's own copy.
        """
        if self._values is None:
            self._ctx.count("dropped/homeless_gradients")
            return None
        if stamp.number <= self._last(stamp):
            # Applied in a life of this shard whose answer was lost with it.
            self._ctx.count("dropped/repeated_gradients")
            return self._slice()
        async with self._turn, self._ctx.work("apply", items=len(wire)):
            barrier = self._take(decode(wire), stamp)
        if barrier is not None:
            await barrier.wait()
        while self._max_ahead is not None and stamp.clock - min(self._clocks.values()) > self._max_ahead:
            await self._moved.wait()
        return self._slice()

    # -- what becomes of a gradient ---------------------------------------------------------------

    def _take(self, gradient: Array, stamp: Stamp) -> asyncio.Event | None:
        """Drop it, keep it for later, or apply it with those that were kept; returns what its pusher must wait for."""
        self._steps += stamp.steps
        self._clocks[stamp.worker] = stamp.clock
        self._announce()
        # After a shard was restored to an earlier update, gradients may be ahead of it.
        behind = max(0, self._updates - stamp.computed_at.update)
        if self._mode == "sync":
            if stamp.computed_at != self.version:
                self._drop("late_gradients", stamp)
                return None
            self._supersede(stamp.worker)
        elif self._max_staleness is not None and behind > self._max_staleness:
            self._drop("stale_gradients", stamp)
            return None
        self._pending.append(Pending(gradient, stamp, behind))
        if len(self._pending) == self._quorum:
            self._apply()
            return None
        if self._mode != "sync":
            return None
        there = {pending.stamp.worker for pending in self._pending}
        missing = sorted(set(self._clocks) - there)
        self._ctx.waiting = f"a gradient of worker {', '.join(map(str, missing))}"
        return self._round

    def _supersede(self, worker: int) -> None:
        """What a worker that died had handed in for this version gives way to what its next life hands in."""
        for pending in [pending for pending in self._pending if pending.stamp.worker == worker]:
            self._pending.remove(pending)
            self._drop("superseded_gradients", pending.stamp)

    def _drop(self, why: str, stamp: Stamp) -> None:
        self._ctx.count(f"dropped/{why}")
        self._note(stamp)

    def _apply(self) -> None:
        """One update: the weighted average of what is pending."""
        assert self._values is not None and self._optimizer is not None
        pending, self._pending = self._pending, []
        self._ctx.waiting = None
        if self._mode == "sync":
            pending.sort(key=lambda each: each.stamp.worker)  # who was first must not change the last bits
        behind = sum(each.behind for each in pending) / len(pending)
        rate = self._cfg.learning_rate
        if self._cfg.anneal:
            rate = decayed(rate, self._spending.share(self._steps))
        if self._staleness_aware:
            # The rate only: the optimiser's statistics see the whole gradient, else they would undo the division.
            rate /= max(1.0, behind)
        self._optimizer.step(self._values, _average(pending), rate)
        if self._ctx.now() - self._checked >= CHECK_SECONDS:
            self._checked = self._ctx.now()
            check_finite({"values": self._values}, f"{self._ctx.identity.role} {self._ctx.identity.index}")
        self._updates += 1
        self._given = None
        for each in pending:
            self._note(each.stamp)
            self._ctx.lag(np.array([each.behind]), weight=each.stamp.weight or 1.0)
        if self._ctx.identity.index == 0:  # an update of all shards is one update
            self._ctx.count("updates")
            self._ctx.record("train/learning_rate", rate)
        self._round.set()
        self._round = asyncio.Event()

    def _announce(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _slice(self) -> Slice:
        """A copy, the same one for all who ask between two updates."""
        if self._given is None or self._given.version != self.version:
            assert self._values is not None
            self._given = Slice(self.version, self._values.copy())
        return self._given

    def _last(self, stamp: Stamp) -> int:
        """The number of the last gradient of this life of this worker that had its effect."""
        life, number = self._applied.get(stamp.worker, (0, -1))
        return number if life == stamp.life else -1

    def _note(self, stamp: Stamp) -> None:
        self._applied[stamp.worker] = (stamp.life, stamp.number)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Parameters, the optimiser's averages, and whose gradients are in them, so that a repeat is known as one."""
        values = {
            "updates": self._updates,
            "steps": self._steps,
            "seconds": self._spending.seconds,
            "applied": [[worker, *last] for worker, last in self._applied.items()],
            "layout": self._layout,
        }
        if self._values is None or self._optimizer is None:
            return {}, values
        slots = {f"optimizer/{name}": slot.copy() for name, slot in self._optimizer.slots.items()}
        return {"values": self._values.copy(), **slots}, values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        if "values" not in arrays:
            return
        self._values = arrays["values"]
        self._optimizer = build_flat(self._cfg, len(self._values))
        for name, slot in self._optimizer.slots.items():
            slot[:] = arrays[f"optimizer/{name}"]
        self._updates, self._steps = values["updates"], values["steps"]
        self._spending.seconds = values.get("seconds", 0.0)  # runs of before had none
        self._applied = {worker: (life, number) for worker, life, number in values["applied"]}
        self._layout = [(name, list(shape)) for name, shape in values["layout"]]
        self._begun.set()


def _average(pending: list[Pending]) -> Array:
    if len(pending) == 1:
        return pending[0].gradient
    total = sum(each.stamp.weight for each in pending) or 1.0
    average = np.zeros_like(pending[0].gradient)
    for each in pending:
        average += each.stamp.weight / total * each.gradient
    return average
