"""NodeAggregator: adds up the gradients of the learners of one node, for their group on another."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import NodeEdges
from thespis.core.errors import ThespisError
from thespis.core.futures import new_future
from thespis.core.payloads import (
    Admission,
    Combined,
    Contribution,
    GradientMessage,
    Member,
    NodeContribution,
    RoleState,
)
from thespis.core.program import Edge
from thespis.core.service import RoleDescription
from thespis.core.types import Array
from thespis.exchange.compression import Compressor
from thespis.exchange.mean_gradients import mean_gradients, read_combined
from thespis.roles.learner_group import LEARNER_METHODS, TICKS


@dataclass(slots=True, eq=False)
class _Waiting:
    """A contribution to the current round, and the reply that its learner waits for."""

    member: Member
    contribution: Contribution
    combined: asyncio.Future[Combined | None] = field(default_factory=new_future)


class NodeAggregator:
    """The group of learners, as the learners of one node call it. One message per round travels to the real group.

    The group decides who takes part; this role only forwards what is not a gradient, and reports at once who is gone.
    Contributions of different updates, or from learners with different weights, are never mixed: the group receives
    them apart. When this role's process ends, the group continues without the node's learners. They enter again after
    its restart.

    Gradients are exact within the node, and perhaps compressed on the way to the group. The error memory of the
    compression is the only state; a restart loses it.
    """

    description: ClassVar = RoleDescription(methods=LEARNER_METHODS, forgets=True)

    def __init__(
        self,
        ctx: Context,
        group: NodeEdges,
        *,
        timeout: float,
        averages: bool,
        clip: float = math.inf,
        compressor: Compressor | None = None,
    ) -> None:
        """`timeout`, `averages`: as of the group. `clip`: the largest norm of a gradient that is compressed."""
        self._ctx, self._group, self._timeout, self._averages = ctx, group, timeout, averages
        self._clip, self._compressor = clip, compressor
        self._members: dict[int, int] = {}
        self._last_heartbeat: dict[Member, float] = {}
        self._round: dict[int, _Waiting] = {}
        self._in_flight: set[Member] = set()  # those whose contribution the group has
        self._sent: set[asyncio.Future[None]] = set()

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse an aggregator that adds nothing up."""
        if sum(edge.method == "combine" for edge in incoming) < 2:
            raise ThespisError(f"{name}: fewer than 2 learners call it, so it would add nothing up")

    async def run(self) -> None:
        """Let silent learners go if others wait for them."""
        while True:
            await self._ctx.sleep(self._timeout / TICKS)
            if self._round:
                deadline = self._ctx.now() - self._timeout
                for member in self._missing():
                    if self._last_heartbeat[member] < deadline:
                        self._remove(member, silent=True)

    # -- edges ------------------------------------------------------------------------------------

    async def heartbeat(self, member: Member) -> None:
        """Forward a heartbeat. The runtime cancels pending calls at once when the learner's process ends."""
        self._note_alive(member)
        try:
            await self._ctx.ahead(self._group.heartbeat(member))
        except asyncio.CancelledError:
            self._remove(member)
            raise

    async def join(self, member: Member, update: int, digest: int) -> Admission:
        """Wait until the learner may enter the group."""
        self._note_alive(member)
        self._members.pop(member.learner, None)
        self._drop_part(member.learner)
        self._send_if_complete()
        try:
            admission = await self._ctx.ahead(self._group.join(member, update, digest))
        except asyncio.CancelledError:
            self._remove(member)
            raise
        self._note_alive(member)
        self._members[member.learner] = member.incarnation
        return admission

    async def offer(self, member: Member, state: RoleState) -> None:
        """Forward the state of a learner to all newcomers."""
        self._note_alive(member)
        await self._ctx.ahead(self._group.offer(member, state))

    async def combine(self, member: Member, part: Contribution) -> Combined | None:
        """Contribute to the current round, and return its result when all learners of all nodes have contributed."""
        self._note_alive(member)
        if self._members.get(member.learner) != member.incarnation:
            return None
        made = self._round[member.learner] = _Waiting(member, part)
        async with self._ctx.work("combine", items=0 if part.gradients is None else part.gradients.size):
            self._send_if_complete()
        try:
            return await made.combined
        except asyncio.CancelledError:
            self._remove(member)
            raise

    async def ready(self, member: Member, update: int) -> None:
        """Forward that a learner has a whole batch."""
        assert self._group.preemption is not None
        self._note_alive(member)
        await self._ctx.ahead(self._group.preemption.ready(member, update))

    async def preempt(self, member: Member, update: int) -> None:
        """Wait until enough learners have a batch for an update."""
        assert self._group.preemption is not None
        self._note_alive(member)
        await self._ctx.ahead(self._group.preemption.preempt(member, update))

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The error memory of the node's gradients, if they are compressed."""
        return {} if self._compressor is None else self._compressor.state(), {}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        if self._compressor is not None:
            self._compressor.restore(arrays)

    # -- learners ---------------------------------------------------------------------------------

    def _note_alive(self, member: Member) -> None:
        self._last_heartbeat[member] = self._ctx.now()

    def _remove(self, member: Member, silent: bool = False) -> None:
        """Go on without a learner, and tell the group."""
        if self._last_heartbeat.pop(member, None) is None:
            return
        if self._members.get(member.learner) == member.incarnation:
            del self._members[member.learner]
            self._drop_part(member.learner)
        self._ctx.ahead(self._group.leave(member, silent))
        self._send_if_complete()

    def _drop_part(self, index: int) -> None:
        """Take a contribution out of the current round; if its learner still waits, tell it to enter again."""
        part = self._round.pop(index, None)
        if part is not None and not part.combined.done():
            part.combined.set_result(None)

    # -- rounds -----------------------------------------------------------------------------------

    def _missing(self) -> list[Member]:
        """The learners for which the round waits."""
        members = [Member(*each) for each in self._members.items()]
        return [each for each in members if each.learner not in self._round and each not in self._in_flight]

    def _send_if_complete(self) -> None:
        """Contribute to the group's round if all learners of this node have.

        A learner that enters while the contribution of the others is under way sends its own after them.
        """
        if not self._round or self._missing():
            return
        states: dict[tuple[tuple[int, int], int | None], list[_Waiting]] = {}
        for index in sorted(self._round):
            part = self._round[index]
            states.setdefault((part.contribution.turn, part.contribution.digest), []).append(part)
        self._round = {}
        for parts in states.values():
            self._in_flight |= {part.member for part in parts}
            sent = self._ctx.ahead(self._contribute(parts))
            self._sent.add(sent)
            sent.add_done_callback(self._sent.discard)

    async def _contribute(self, parts: Sequence[_Waiting]) -> None:
        """Send the sum of contributions that belong together, and give the group's reply to their learners."""
        given = await self._sum(parts)
        combined = await self._ctx.ahead(self._group.combine(given))
        self._in_flight -= {part.member for part in parts}
        waiting = [part for part in parts if not part.combined.done()]
        if combined is None:
            for part in parts:
                if self._members.get(part.member.learner) == part.member.incarnation:
                    del self._members[part.member.learner]
            for part in waiting:
                part.combined.set_result(None)
            self._send_if_complete()
            return
        own = given.part.gradients
        if combined.gradients is not None and own is not None:
            # One vector in this process's memory, where all learners of the node read it.
            mean = read_combined(combined.gradients, own, into=self._ctx.allocate(own.size))
            combined = combined._replace(gradients=mean)
        for number, part in enumerate(waiting):
            leads, newcomers = (combined.leads, combined.newcomers) if number == 0 else (False, False)
            part.combined.set_result(combined._replace(leads=leads, newcomers=newcomers))

    async def _sum(self, parts: Sequence[_Waiting]) -> NodeContribution:
        given = [part.contribution for part in parts]
        statistics = [each.statistics for each in given if each.statistics is not None]
        mean = None if statistics else mean_gradients(self._ctx, given, self._averages)
        part = given[0]._replace(
            gradients=None if mean is None else await self._encode(mean),
            rows=sum(each.rows for each in given),
            statistics=None,
            steps=sum(each.steps for each in given),
            fraction=max(each.fraction for each in given),
        )
        return NodeContribution([each.member for each in parts], part, statistics)

    async def _encode(self, mean: Array) -> GradientMessage | None:
        """The node's gradients as a message; None if they are compressed and not finite.

        An encoding counts as delivered, so that its memory does not depend on the reply.
        """
        if self._compressor is None:
            return mean
        norm = float(np.linalg.norm(mean))
        if not math.isfinite(norm):
            return None
        if norm > self._clip:
            mean *= np.float32(self._clip / norm)
        async with self._ctx.work("compress", items=len(mean)):
            sent = self._compressor.encode(mean)
            self._compressor.commit()
        return sent
