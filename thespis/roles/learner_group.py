"""LearnerGroup: adds up the gradients of several learners, and decides which learners take part."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.futures import new_future
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import (
    Admission,
    Combined,
    Contribution,
    GatheredGradients,
    GradientMessage,
    Member,
    NodeContribution,
    RoleState,
)
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array
from thespis.exchange.compression import GroupCompressor
from thespis.exchange.heartbeats import PendingHeartbeats
from thespis.exchange.mean_gradients import mean_gradients, row_weights

TICKS = 4
"""Checks per timeout, and heartbeats of a learner per timeout."""
LEARNER_METHODS = {
    "heartbeat": Method("gradients", takes="signal"),
    "join": Method("gradients", gives="state"),
    "offer": Method("gradients", takes="state"),
    "combine": Method("gradients", takes="gradients", gives="gradients"),
    "ready": Method("gradients", takes="signal"),
    "preempt": Method("gradients", gives="signal"),
}
"""The methods that a learner calls, of its group or of the aggregator of its node."""
_RING_METHODS = {"agree": Method("gradients", takes="vote", gives="votes")}
"""The method that a learner calls instead of `combine`, if the learners add their gradients up between them."""
_NODE_METHODS = {
    "combine_node": Method("gradients", takes="gradients", gives="gradients"),
    "leave": Method("gradients", takes="signal"),
}
"""The methods that the aggregator of a node calls besides."""
_FORM_SECONDS = 10.0
"""How long the first learner of a new run waits for the others."""


@dataclass(slots=True)
class _Newcomer:
    """A learner that waits to enter."""

    member: Member
    update: int
    digest: int
    admitted: asyncio.Future[Admission]


@dataclass(slots=True)
class _Slow:
    """A learner that collects the batch of an update, and waits for the signal to use what it has."""

    update: int
    signal: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Part:
    """A contribution to the current round, of one learner or of several of one node, and the reply they wait for."""

    members: list[Member]
    contribution: Contribution
    statistics: list[Array]
    combined: asyncio.Future[Combined | None] = field(default_factory=new_future)


class LearnerGroup:
    """All-reduce with changing members. In every round each member contributes, and all receive the same result.

    A round ends when every member has contributed. A member leaves when its process ends or when it is silent for
    `timeout` seconds; the round then ends without it. A learner that enters loads the state of a member between two
    updates. All decisions are made here, so that no two learners can disagree about a round.

    A learner that collects its batch may wait for `preempt`, which returns when enough others have a batch.

    With two levels, a `NodeAggregator` contributes for the learners of its node, which remain the members.

    All members are at the highest update. A learner that falls behind, e.g. because it was stopped, receives None and
    enters again. A restarted group has no members at first. The error memory of compressed gradients is its only
    state; a restart loses it.
    """

    description: ClassVar = RoleDescription(methods=LEARNER_METHODS | _RING_METHODS | _NODE_METHODS, forgets=True)

    def __init__(
        self,
        ctx: Context,
        *,
        learners: int,
        timeout: float,
        averages: bool,
        preempt_share: float = 1.0,
        per_node: int = 1,
        compression: CompressionConfig = UNCOMPRESSED,
    ) -> None:
        """`learners`: how many a new run waits for. `averages`: combine gradients to their mean over all rows.

        Without `averages` they are added up, for losses that are sums over rows. `preempt_share`: the share of the
        members that must have a batch before `preempt` returns. `per_node`: learners for which each
        node aggregator contributes. `compression`: of the combined gradients.
        """
        self._ctx, self._learners, self._timeout, self._averages = ctx, learners, timeout, averages
        self._preempt_share = preempt_share
        self._compressor = GroupCompressor(ctx, compression) if compression.compresses else None
        # After a restart the learners are running: one that computes enters later, perhaps with the most updates.
        self._form_seconds = timeout if ctx.identity.restarts else _FORM_SECONDS
        self._members: dict[int, int] = {}
        self._last_heartbeat: dict[Member, float] = {}
        self._heartbeats = PendingHeartbeats(timeout / TICKS)
        self._newcomers: dict[int, _Newcomer] = {}
        self._round: dict[int, _Part] = {}
        self._first_join: float | None = None
        self._ready: dict[int, int] = {}
        self._slow: dict[int, _Slow] = {}

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse to wait for learners that do not exist."""
        nodes, learners = sum(edge.method == "combine_node" for edge in incoming), settings["learners"]
        callers = sum(edge.method in ("combine", "agree") for edge in incoming) + nodes * settings.get("per_node", 1)
        if callers != learners:
            raise ThespisError(f"{name}: the group waits for {learners} learners, but {callers} call it")

    async def run(self) -> None:
        """Form the group when it has waited long enough, and remove members without a heartbeat."""
        while True:
            await self._ctx.sleep(self._timeout / TICKS)
            self._form_if_due()
            if self._round or self._newcomers:
                deadline = self._ctx.now() - self._timeout
                for index, incarnation in list(self._members.items()):
                    if index not in self._round and self._last_heartbeat[Member(index, incarnation)] < deadline:
                        self._ctx.count("group/timeouts")
                        self._remove(Member(index, incarnation))

    # -- edges ------------------------------------------------------------------------------------

    async def heartbeat(self, member: Member) -> None:
        """Note that a learner is alive; return when its next heartbeat has arrived."""
        self._note_alive(member)
        try:
            await self._heartbeats.keep(member)
        except asyncio.CancelledError:
            self._remove(member)
            raise

    async def join(self, member: Member, update: int, digest: int) -> Admission:
        """Wait until the learner may enter.

        `digest`: of its weights. A learner whose update count or digest differs receives the state of a member.
        """
        self._note_alive(member)
        self._members.pop(member.learner, None)
        self._drop_part(member.learner)
        admitted = new_future()
        self._newcomers[member.learner] = _Newcomer(member, update, digest, admitted)
        if not self._members and self._first_join is None:
            self._first_join = self._ctx.now()
        self._form_if_due()
        self._close_if_complete()
        try:
            admission: Admission = await admitted
        except asyncio.CancelledError:
            self._remove(member)
            raise
        return admission

    async def offer(self, member: Member, state: RoleState) -> None:
        """Admit all newcomers with the state of a member."""
        self._note_alive(member)
        if self._members.get(member.learner) != member.incarnation:
            return
        for newcomer in self._newcomers.values():
            self._admit(newcomer, Admission(state, newcomers=False))
            self._ctx.count("group/entered")
        self._newcomers.clear()

    async def combine(self, member: Member, part: Contribution) -> Combined | None:
        """Contribute to the current round, and return its result when all members have contributed."""
        self._note_alive(member)
        if self._members.get(member.learner) != member.incarnation:
            return None
        return await self._contribute(_Part([member], part, [] if part.statistics is None else [part.statistics]))

    async def agree(self, member: Member, part: Contribution) -> Combined | None:
        """Take part in a round of a `CollectiveAllReduce`: a vote instead of gradients, as statistics."""
        return await self.combine(member, part)

    async def combine_node(self, given: NodeContribution) -> Combined | None:
        """Contribute for learners of one node, which leave the group if their aggregator's process ends."""
        for member in given.members:
            self._note_alive(member)
        if any(self._members.get(member.learner) != member.incarnation for member in given.members):
            return None
        return await self._contribute(_Part(given.members, given.part, given.statistics))

    async def leave(self, member: Member, silent: bool) -> None:
        """Go on without a learner whose aggregator noticed that it is gone or silent."""
        if silent and self._members.get(member.learner) == member.incarnation:
            self._ctx.count("group/timeouts")
        self._remove(member)

    async def ready(self, member: Member, update: int) -> None:
        """Note that a learner has a whole batch for an update, before it computes the gradients."""
        self._note_alive(member)
        if self._members.get(member.learner) == member.incarnation:
            self._has_batch(member, update)

    async def preempt(self, member: Member, update: int) -> None:
        """Wait until enough members have a batch for an update; this learner then uses what it has."""
        self._note_alive(member)
        self._release(member.learner)
        signal = new_future()
        self._slow[member.learner] = _Slow(update, signal)
        self._signal_slow()
        await signal

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The error memory of the returned gradients, if they are compressed."""
        return {} if self._compressor is None else self._compressor.state(), {}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        if self._compressor is not None:
            self._compressor.restore(arrays)

    # -- members ----------------------------------------------------------------------------------

    async def _contribute(self, made: _Part) -> Combined | None:
        part = made.contribution
        self._round |= {member.learner: made for member in made.members}
        async with self._ctx.work("combine", items=0 if part.gradients is None else part.gradients.size):
            for member in made.members:
                self._has_batch(member, part.update)
            self._close_if_complete()
        try:
            return await made.combined
        except asyncio.CancelledError:
            for member in made.members:
                self._remove(member)
            raise

    def _note_alive(self, member: Member) -> None:
        self._last_heartbeat[member] = self._ctx.now()

    def _admit(self, newcomer: _Newcomer, admission: Admission) -> None:
        member = newcomer.member
        self._members[member.learner] = member.incarnation
        self._note_alive(member)
        if not newcomer.admitted.done():  # its process may have ended just now; `join` then removes it
            newcomer.admitted.set_result(admission)

    def _form_if_due(self) -> None:
        """If there are no members, admit all newcomers that have the newest state."""
        if self._members or not self._newcomers or self._first_join is None:
            return
        waited = self._ctx.now() - self._first_join
        if len(self._newcomers) < self._learners and waited < self._form_seconds:
            return
        first = min(self._newcomers.values(), key=lambda each: (-each.update, each.member.learner))
        equal = [
            each for each in self._newcomers.values() if (each.update, each.digest) == (first.update, first.digest)
        ]
        for newcomer in equal:
            del self._newcomers[newcomer.member.learner]
        for newcomer in equal:
            self._admit(newcomer, Admission(None, newcomers=newcomer is first and bool(self._newcomers)))
        self._first_join, self._form_seconds = None, self._timeout / TICKS

    def _remove(self, member: Member) -> None:
        """Remove this incarnation of a learner from the members or the newcomers."""
        self._last_heartbeat.pop(member, None)
        self._heartbeats.end(member)
        newcomer = self._newcomers.get(member.learner)
        if newcomer is not None and newcomer.member == member:
            del self._newcomers[member.learner]
        if self._members.get(member.learner) == member.incarnation:
            del self._members[member.learner]
            self._ctx.count("group/lost")
            self._drop_part(member.learner)
        if not self._members and self._newcomers and self._first_join is None:
            self._first_join = self._ctx.now()  # no member is left whose state they could load
        self._close_if_complete()
        self._signal_slow()

    def _drop_part(self, index: int) -> None:
        """Remove a contribution from the current round. A waiting learner receives None and enters again.

        The contribution of a node stays as long as one of its learners does.
        """
        part = self._round.pop(index, None)
        if part is not None and part not in self._round.values() and not part.combined.done():
            part.combined.set_result(None)

    # -- slow learners ----------------------------------------------------------------------------

    def _has_batch(self, member: Member, update: int) -> None:
        self._ready[member.learner] = update
        self._release(member.learner)
        self._signal_slow()

    def _signal_slow(self) -> None:
        """Release slow learners if enough members have a batch, or if they are no members."""
        enough = self._preempt_share * len(self._members) - 1e-9
        for index, slow in list(self._slow.items()):
            ready = sum(self._ready.get(member, -1) >= slow.update for member in self._members)
            if index not in self._members or ready >= enough:
                self._release(index)

    def _release(self, index: int) -> None:
        slow = self._slow.pop(index, None)
        if slow is not None and not slow.signal.done():
            slow.signal.set_result(None)

    # -- rounds -----------------------------------------------------------------------------------

    def _close_if_complete(self) -> None:
        """End the round if all members have contributed. Members in another state must enter again."""
        if not self._members or self._round.keys() != self._members.keys():
            return
        turns = {index: part.contribution.turn for index, part in self._round.items()}
        newest = max(turns.values())
        digest = next(self._round[index].contribution.digest for index in sorted(turns) if turns[index] == newest)
        for index, turn in turns.items():
            if turn != newest or self._round[index].contribution.digest != digest:
                self._ctx.count("group/behind" if turn != newest else "group/diverged")
                del self._members[index]
                self._drop_part(index)
                self._release(index)
        parts = list({id(self._round[index]): self._round[index] for index in sorted(self._round)}.values())
        self._round = {}
        combined = self._combine(parts)
        for number, part in enumerate(parts):
            leads, gradients = number == 0, combined.gradients
            if isinstance(gradients, GatheredGradients):
                gradients = gradients.without(number)
            reply = combined._replace(gradients=gradients, leads=leads, newcomers=leads and bool(self._newcomers))
            if not part.combined.done():
                part.combined.set_result(reply)

    def _combine(self, parts: Sequence[_Part]) -> Combined:
        """The result of a round. The order of the parts is that of the learners, which fixes the rounding."""
        given = [part.contribution for part in parts]
        statistics = [each for part in parts for each in part.statistics]
        gradients = None if statistics else self._combine_gradients(given)
        if gradients is None and not statistics:
            self._ctx.count("group/vetoed_rounds")
        learners = sum(len(part.members) for part in parts)
        steps, fraction = sum(part.steps for part in given), max(part.fraction for part in given)
        return Combined(gradients, statistics, learners, steps, fraction)

    def _combine_gradients(self, given: Sequence[Contribution]) -> GradientMessage | GatheredGradients | None:
        """The mean of the gradients, or all of them; None if a part has none to apply."""
        if self._compressor is not None:
            gathered = self._compressor.gather([part.gradients for part in given], row_weights(given, self._averages))
            if gathered is not None:
                return gathered
        mean = mean_gradients(self._ctx, given, self._averages)
        return mean if mean is None or self._compressor is None else self._compressor.encode(mean, given[0].gradients)
