"""Controller: assigns members to trainers, compares their scores, and lets weak members copy strong ones."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from thespis.core.context import Context
from thespis.core.service import Method, RoleDescription
from thespis.core.system.commit import sweep
from thespis.core.types import Array, Version, VersionedWeights
from thespis.population.exploit import Exploit, Hypers, Prior, Scores, best, draw_hypers, explore
from thespis.population.history import History, HistoryRow, MemberState
from thespis.population.member_runs import MemberRuns
from thespis.population.trainer import Outcome, Segment

_PATIENCE = 3
"""Consecutive failures of a member that end the run: new hyper-parameters did not help, so they are not the cause."""


@dataclass(frozen=True)
class Rules:
    """How a population evolves. `budget`: steps per member; `interval`: steps between two comparisons."""

    population: int
    slots: int
    budget: int
    interval: int
    synchronous: bool
    priors: Mapping[str, Prior]
    exploit: Exploit
    factor: float
    resample: float


class Controller:
    """Assigns segments of training to trainers and evolves the population.

    Its whole state is the history on disk, so a restarted controller continues from there. A member belongs to one
    slot for the whole run, so two trainers never train the same member, even after restarts.
    """

    description: ClassVar = RoleDescription(
        methods={
            "take": Method("weights", gives="member"),
            "ready": Method("experience", takes="returns"),
            "pull": Method("weights", gives="weights"),
        },
        publishes=True,
    )

    def __init__(self, ctx: Context, rules: Rules, members: MemberRuns) -> None:
        self._ctx, self._rules, self._runs = ctx, rules, members
        members.root.mkdir(exist_ok=True)
        sweep(members.root)
        self._history = History(members.root.parent)
        self._changed = asyncio.Condition()
        self._counted = [0, 0]
        if not self._history.rows:
            self._history.add(self._start())
        self._decide()
        if ctx.identity.restarts:  # an earlier incarnation has reported the whole history
            self._counted = self._totals()
        self._count()

    # -- edges ------------------------------------------------------------------------------------

    async def take(self, slot: int) -> Segment:
        """Return the next segment of a slot's trainer; wait for other slots if needed, forever after the last one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._next(slot) is not None)
        member = self._next(slot)
        assert member is not None
        me = self._members[member]
        return Segment(member, me.run, me.hypers, me.reached, me.reached.env_steps + self._target(me) - me.steps)

    async def ready(self, outcome: Outcome) -> None:
        """Record the outcome of a segment, and decide how the member continues."""
        me = self._members[outcome.member]
        if outcome.run != me.run or outcome.since != me.reached:
            return  # a duplicate: an earlier incarnation of the controller has recorded it
        ctx, episodes = self._ctx, outcome.episodes
        row = HistoryRow(
            event="ready",
            time=ctx.now(),
            member=outcome.member,
            run=me.run,
            steps=me.steps + outcome.reached.env_steps - me.reached.env_steps,
            score=statistics.fmean(episode.reward for episode in episodes) if episodes else None,
            before=me.hypers,
            after=me.hypers,
            reached=outcome.reached,
            error=outcome.error,
        )
        self._history.add([row])
        failures = self._members[outcome.member].failures
        if failures >= _PATIENCE:
            raise RuntimeError(f"member {outcome.member} failed {failures} times in a row: {outcome.error}")
        for name, count in outcome.dropped.items():
            ctx.count(name, count)
        self._report(outcome)
        async with ctx.work("exploit"):
            self._decide()
        async with self._changed:
            self._changed.notify_all()

    async def pull(self, newer_than: Version | None) -> VersionedWeights | None:
        """The weights of the best member if newer. Waits only until the first member has a score."""
        async with self._changed:
            await self._changed.wait_for(lambda: newer_than is not None or self._leader() is not None)
        version = Version(self._ctx.identity.epoch, len(self._history.rows))
        weights = self._leader_weights() if newer_than is None or version > newer_than else None
        return None if weights is None else VersionedWeights(version, weights)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The best member's weights, and the counts reported so far."""
        weights = self._leader_weights() or {}
        return {f"weights/{name}": value for name, value in weights.items()}, {"counted": list(self._counted)}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Subtract the counts of a checkpoint when a run is resumed."""
        if not self._ctx.identity.restarts:
            # The run restores these counts itself, and `__init__` has just reported the whole history.
            for name, count in zip(("env_steps", "updates"), values["counted"], strict=True):
                self._ctx.count(name, -count)

    # -- scheduling -------------------------------------------------------------------------------

    @property
    def _members(self) -> dict[int, MemberState]:
        return self._history.members

    def _round(self, me: MemberState) -> int:
        return me.steps // self._rules.interval

    def _target(self, me: MemberState) -> int:
        """The member's steps at the end of its interval. A member that overshoots gets a shorter next interval."""
        return min(self._rules.budget, (self._round(me) + 1) * self._rules.interval)

    def _done(self, me: MemberState) -> bool:
        return me.steps >= self._rules.budget

    def _next(self, slot: int) -> int | None:
        """The member of a slot with the fewest steps; None if it must wait for other slots or all are done."""
        mine = range(slot, self._rules.population, self._rules.slots)
        todo = [member for member in mine if not self._done(self._members[member])]
        chosen = min(todo, key=lambda member: (self._members[member].steps, member), default=None)
        if chosen is None or not self._rules.synchronous:
            return chosen
        behind = min(map(self._round, self._members.values()))
        return chosen if self._round(self._members[chosen]) == behind else None

    # -- exploit and explore ----------------------------------------------------------------------

    def _rng(self) -> np.random.Generator:
        """A generator seeded by the length of the history, so that a repeated decision has the same result."""
        return np.random.default_rng([self._runs.base.seed, len(self._history.rows)])

    def _start(self) -> list[HistoryRow]:
        rng = self._rng()
        drawn = [draw_hypers(self._rules.priors, rng) for _ in range(self._rules.population)]
        return [
            HistoryRow("start", self._ctx.now(), member, f"{member}-0", after=hypers)
            for member, hypers in enumerate(drawn)
        ]

    def _decide(self) -> None:
        """Decide how ready members continue. The rows of one decision are written in one piece: all or none."""
        last = self._history.rows[-1]
        ready = [last.member] if last.event == "ready" else []
        if self._rules.synchronous and last.event == "ready" and last.error is None:
            same_round = len(set(map(self._round, self._members.values()))) == 1
            ready = sorted(self._members) if same_round else []
        before, rng = dict(self._members), self._rng()
        scores = [before[member].score for member in sorted(before)]
        changes = [self._change(member, before, scores, rng) for member in ready if not self._done(before[member])]
        rows = [row for row in changes if row is not None]
        if rows:
            self._history.add(rows)
        for row in rows:
            self._runs.retire(before[row.member].run)

    def _change(
        self, member: int, members: dict[int, MemberState], scores: Scores, rng: np.random.Generator
    ) -> HistoryRow | None:
        """The row for a member that copies or restarts, after its new run exists; None if it continues unchanged."""
        rules, me = self._rules, members[member]
        parent = best(scores) if me.failures else rules.exploit(scores, member, rng)
        run = f"{member}-{me.branches}"
        if parent is not None:
            hypers = explore(members[parent].hypers, rules.priors, rng, factor=rules.factor, resample=rules.resample)
            copied = self._runs.fork(members[parent].run, run, hypers)
            if copied is not None:
                self._ctx.count("population/copies")
                return HistoryRow(
                    "copy", self._ctx.now(), member, run, me.steps, me.score, parent, copied[1], me.hypers, hypers,
                    copied[0],
                )  # fmt: skip
        if me.failures:
            return HistoryRow(
                "redraw", self._ctx.now(), member, run, me.steps, before=me.hypers, after=draw_hypers(rules.priors, rng)
            )
        return None

    # -- reporting --------------------------------------------------------------------------------

    def _scores(self) -> list[float | None]:
        return [self._members[member].score for member in sorted(self._members)]

    def _leader(self) -> int | None:
        return best(self._scores())

    def _leader_weights(self) -> dict[str, Array] | None:
        leader = self._leader()
        return None if leader is None else self._runs.weights(self._members[leader].run)

    def _totals(self) -> list[int]:
        members = self._members.values()
        return [sum(member.steps for member in members), sum(member.updates for member in members)]

    def _count(self) -> None:
        totals = self._totals()
        for name, total, counted in zip(("env_steps", "updates"), totals, self._counted, strict=True):
            self._ctx.count(name, total - counted)
        self._counted = totals

    def _report(self, outcome: Outcome) -> None:
        """Report counts and scores. Episodes are those of the best member, because its policy is the result."""
        self._count()
        scores = [score for score in self._scores() if score is not None]
        if scores:
            for name, value in (("best", max(scores)), ("median", statistics.median(scores)), ("worst", min(scores))):
                self._ctx.record(f"population/return_{name}", value)
        if self._leader() == outcome.member:
            for episode in outcome.episodes:
                self._ctx.episode(episode)
            for path, value in _numbers(self._members[outcome.member].hypers).items():
                self._ctx.record(f"leader/{path}", value)


def _numbers(hypers: Hypers) -> dict[str, float]:
    return {path: float(value) for path, value in hypers.items() if isinstance(value, int | float)}
