"""Controller: hands out the members of a population, judges them when they are ready, has the bad copy the good."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from thespis.core.context import Context
from thespis.core.service import Method, RoleDescription
from thespis.core.system.commit import sweep
from thespis.core.types import Array, Version, Versioned
from thespis.population.exploit import Hypers, Prior, Scores, best, draw, explore
from thespis.population.history import Lineage, Member, Row
from thespis.population.members import Members
from thespis.population.trainer import Outcome, Segment

_PATIENCE = 3
"""How often in a row a member's run may fail: other hyper-parameters did not help, so it is not for them."""

Exploit = Callable[[Scores, int, np.random.Generator], int | None]


@dataclass(frozen=True)
class Rules:
    """How a population evolves. `budget`: steps each member takes; `interval`: those between two judgements."""

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
    """Knows nothing that is not in the lineage on disk, from which every life of it goes on.

    A member belongs to one slot for the whole run, so no two trainers ever train the same one, whoever was restarted.
    """

    description: ClassVar = RoleDescription(
        methods={
            "take": Method("weights", gives="member"),
            "ready": Method("experience", takes="returns"),
            "pull": Method("weights", gives="weights"),
        },
        publishes=True,
    )

    def __init__(self, ctx: Context, rules: Rules, members: Members) -> None:
        self._ctx, self._rules, self._runs = ctx, rules, members
        members.root.mkdir(exist_ok=True)
        sweep(members.root)
        self._lineage = Lineage(members.root.parent)
        self._changed = asyncio.Condition()
        self._counted = [0, 0]
        if not self._lineage.rows:
            self._lineage.add(self._start())
        self._settle()
        if ctx.identity.restarts:  # all that is in the lineage has been reported by an earlier life
            self._counted = self._totals()
        self._count()

    # -- edges ------------------------------------------------------------------------------------

    async def take(self, slot: int) -> Segment:
        """What the trainer of a slot is to do next. Waits while that depends on others; for ever when all is done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._next(slot) is not None)
        member = self._next(slot)
        assert member is not None
        me = self._members[member]
        return Segment(member, me.run, me.hypers, me.reached, me.reached.env_steps + self._target(me) - me.steps)

    async def ready(self, outcome: Outcome) -> None:
        """A member has trained for its interval: note what it reached, and decide how it goes on."""
        me = self._members[outcome.member]
        if outcome.run != me.run or outcome.since != me.reached:
            return  # an answer to an earlier life of the controller, which has counted it
        ctx, episodes = self._ctx, outcome.episodes
        row = Row(
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
        self._lineage.add([row])
        failures = self._members[outcome.member].failures
        if failures >= _PATIENCE:
            raise RuntimeError(f"member {outcome.member} failed {failures} times in a row: {outcome.error}")
        for name, count in outcome.dropped.items():
            ctx.count(name, count)
        self._report(outcome)
        async with ctx.work("exploit"):
            self._settle()
        async with self._changed:
            self._changed.notify_all()

    async def pull(self, newer_than: Version | None) -> Versioned | None:
        """The policy of the member that leads, for whoever wants to judge it; waits only for the first."""
        async with self._changed:
            await self._changed.wait_for(lambda: newer_than is not None or self._leader() is not None)
        version = Version(self._ctx.identity.epoch, len(self._lineage.rows))
        weights = self._leader_weights() if newer_than is None or version > newer_than else None
        return None if weights is None else Versioned(version, weights)

    # -- what a checkpoint of the population keeps: the policy that leads, and how much was reported -----------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        weights = self._leader_weights() or {}
        return {f"weights/{name}": value for name, value in weights.items()}, {"counted": list(self._counted)}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        if not self._ctx.identity.restarts:
            # Reported before the checkpoint was made; `__init__` has just reported all of it.
            for name, count in zip(("env_steps", "updates"), values["counted"], strict=True):
                self._ctx.count(name, -count)

    # -- who is next ------------------------------------------------------------------------------

    @property
    def _members(self) -> dict[int, Member]:
        return self._lineage.members

    def _round(self, me: Member) -> int:
        return me.steps // self._rules.interval

    def _target(self, me: Member) -> int:
        """Steps at which the member is ready next; what it took too many are taken off the next interval."""
        return min(self._rules.budget, (self._round(me) + 1) * self._rules.interval)

    def _done(self, me: Member) -> bool:
        return me.steps >= self._rules.budget

    def _next(self, slot: int) -> int | None:
        """The member of a slot that is furthest behind; None if it has to wait for other slots, or all is done."""
        mine = range(slot, self._rules.population, self._rules.slots)
        todo = [member for member in mine if not self._done(self._members[member])]
        chosen = min(todo, key=lambda member: (self._members[member].steps, member), default=None)
        if chosen is None or not self._rules.synchronous:
            return chosen
        behind = min(map(self._round, self._members.values()))
        return chosen if self._round(self._members[chosen]) == behind else None

    # -- exploit and explore ----------------------------------------------------------------------

    def _rng(self) -> np.random.Generator:
        """From how long the lineage is, so that a decision which is taken again comes out the same."""
        return np.random.default_rng([self._runs.base.seed, len(self._lineage.rows)])

    def _start(self) -> list[Row]:
        rng = self._rng()
        drawn = [draw(self._rules.priors, rng) for _ in range(self._rules.population)]
        return [
            Row("start", self._ctx.now(), member, f"{member}-0", after=hypers) for member, hypers in enumerate(drawn)
        ]

    def _settle(self) -> None:
        """Decide for those who are ready. The rows of one decision are written together: all count, or none."""
        last = self._lineage.rows[-1]
        who = [last.member] if last.event == "ready" else []
        if self._rules.synchronous and last.event == "ready" and last.error is None:
            together = len(set(map(self._round, self._members.values()))) == 1
            who = sorted(self._members) if together else []
        before, rng = dict(self._members), self._rng()
        scores = [before[member].score for member in sorted(before)]
        changes = [self._change(member, before, scores, rng) for member in who if not self._done(before[member])]
        rows = [row for row in changes if row is not None]
        if rows:
            self._lineage.add(rows)
        for row in rows:
            self._runs.retire(before[row.member].run)

    def _change(self, member: int, members: dict[int, Member], scores: Scores, rng: np.random.Generator) -> Row | None:
        """The row that makes a member another one, whose run is there already; None if it goes on as it is."""
        rules, me = self._rules, members[member]
        parent = best(scores) if me.failures else rules.exploit(scores, member, rng)
        run = f"{member}-{me.branches}"
        if parent is not None:
            hypers = explore(members[parent].hypers, rules.priors, rng, factor=rules.factor, resample=rules.resample)
            copied = self._runs.fork(members[parent].run, run, hypers)
            if copied is not None:
                self._ctx.count("population/copies")
                return Row(
                    "copy", self._ctx.now(), member, run, me.steps, me.score, parent, copied[1], me.hypers, hypers,
                    copied[0],
                )  # fmt: skip
        if me.failures:
            return Row(
                "redraw", self._ctx.now(), member, run, me.steps, before=me.hypers, after=draw(rules.priors, rng)
            )
        return None

    # -- what others see --------------------------------------------------------------------------

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
        """The returns of the population are those of its leader: that is the policy one takes from it."""
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
