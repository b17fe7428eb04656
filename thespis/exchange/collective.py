"""All-reduce by torch.distributed: gradients travel between the learners, and the group decides which sum counts.

    learner --vote------> group         its rows, and whether it has gradients
    learner <----votes--- group         of all members: the ring, and the weight of each learner in the mean
    learner ==gradients=> learner       the ring adds up, outside the edges
    learner --outcome---> group         done or failed
    learner <--outcomes-- group         all done: every learner applies the sum. Otherwise none does, and they repeat

Votes and outcomes are statistics in rounds of the group. All members read the same ones, so they decide the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thespis.core.blocking_calls import BlockingCalls
from thespis.core.context import Context, Waiting
from thespis.core.edges import GroupEdges
from thespis.core.errors import ThespisError
from thespis.core.payloads import Member
from thespis.core.types import Array
from thespis.exchange.all_reduce import AllReduce
from thespis.exchange.protocol import Replica
from thespis.exchange.ring import Addresses, Ring, ring_number
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer

_ATTEMPTS = 3
"""Failures of one gradient step with the same members, after which the learner fails."""
_LOOPBACK = "127.0.0.1"
_HEADER = struct.Struct("<5q")


class _Stage(IntEnum):
    """What a learner reports in one round."""

    SKIP = 0
    """A vote: it has no gradients, so none must be applied."""
    VOTE = 1
    """A vote: it has gradients."""
    CONNECT = 2
    """It connects to the others, and sends its addresses."""
    FAILED = 3
    """An outcome: it does not have the sum."""
    DONE = 4
    """An outcome: it has the sum."""


class _Message(NamedTuple):
    """What a learner sends to all members of its group.

    `rows`: of its batch, in a vote. `ring`: number of the ring that it has, in a vote; 0 for none.
    """

    member: Member
    stage: _Stage
    rows: int = 0
    ring: int = 0
    addresses: Addresses = {}  # noqa: RUF012

    def encode(self) -> Array:
        """The message as uint8."""
        header = _HEADER.pack(*self.member, self.stage, self.rows, self.ring)
        rest = json.dumps({key: value.hex() for key, value in self.addresses.items()}).encode()
        return np.frombuffer(header + rest, np.uint8)

    @classmethod
    def decode(cls, array: Array) -> _Message:
        """Return what `encode` made an array of."""
        data = array.tobytes()
        learner, incarnation, stage, rows, ring = _HEADER.unpack_from(data)
        addresses = {key: bytes.fromhex(value) for key, value in json.loads(data[_HEADER.size :]).items()}
        return cls(Member(learner, incarnation), _Stage(stage), rows, ring, addresses)


class _Broken(Exception):
    """The members changed, or one of them failed, while they connected. All members know it."""


class CollectiveAllReduce(AllReduce):
    """The same with gradients that travel from learner to learner, so that no process receives those of all.

    The group decides who takes part. A ring has fixed members: when the members change, the learners abandon it and
    repeat the gradient step in a new one. A sum takes effect if all members of the ring have it, and otherwise nowhere.
    A failed ring removes no learner; it only ends with the next vote.
    """

    def __init__(
        self, ctx: Context, optimizer: ScheduledOptimizer, group: GroupEdges, averages: bool, timeout: float
    ) -> None:
        """`averages`: as of the group. `timeout`: seconds without progress after which a ring fails."""
        super().__init__(ctx, optimizer, group)
        self._averages, self._timeout = averages, timeout
        self._edge = f"{ctx.identity.role}.{ctx.identity.role}.all_reduce"
        self._blocking = BlockingCalls(ctx, threaded=True)
        self._ring: Ring | None = None
        self._had_ring = False

    async def begin(self, replica: Replica) -> None:
        """Enter the group without a ring."""
        self._abandon()
        await super().begin(replica)

    async def _reduce(self, gradients: list[Tensor] | None, rows: int) -> bool:
        members: list[Member] = []
        failures = 0
        try:
            while True:
                votes = await self._vote(_Stage.SKIP if gradients is None else _Stage.VOTE, rows)
                if gradients is None or any(vote.stage == _Stage.SKIP for vote in votes):
                    if self.leads:
                        self._ctx.count("group/vetoed_rounds")
                    return False
                if members != (members := [vote.member for vote in votes]):
                    failures = 0
                failure = await self._add_up(gradients, members, votes)
                if failure is None:
                    return True
                failures += 1
                if failures == _ATTEMPTS:
                    raise ThespisError(
                        f"{self._ctx.identity}: the learners cannot add up their gradients by gloo ({failure}); let "
                        "their nodes accept connections from each other, or give --all-reduce group"
                    )
        except BaseException:
            self._abandon()
            raise

    async def _add_up(self, gradients: list[Tensor], members: list[Member], votes: Sequence[_Message]) -> str | None:
        """Write the mean to `_mean`; return None if all members have it, else why this one has not."""
        total = sum(vote.rows for vote in votes)
        rank = members.index(self._member)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._mean)
        self._mean *= votes[rank].rows / total if self._averages and total else 1.0
        failure = None
        try:
            if any(vote.ring != ring_number(members) for vote in votes):
                await self._connect(members, rank, again=any(vote.ring for vote in votes))
            await self._add_up_in_ring()
        except _Broken:
            return "another learner failed"
        except RuntimeError as error:  # of torch.distributed
            failure = str(error)
            self._abandon()
        outcomes = await self._send(_Message(self._member, _Stage.DONE if failure is None else _Stage.FAILED))
        done = [outcome.member for outcome in outcomes if outcome.stage == _Stage.DONE]
        if done == members:
            return None
        self._abandon()
        return failure or "another learner failed"

    async def _connect(self, members: list[Member], rank: int, again: bool) -> None:
        """Make the ring of these members. `again`: some of them had one."""
        if self.leads and (again or self._had_ring):
            self._ctx.count("group/ring_rebuilt")
        self._abandon()
        self._had_ring = True

        async def swap(addresses: Addresses) -> Addresses:
            replies = await self._send(_Message(self._member, _Stage.CONNECT, addresses=addresses))
            if [reply.member for reply in replies if reply.stage == _Stage.CONNECT] != members:
                raise _Broken
            return {key: value for reply in replies for key, value in reply.addresses.items()}

        def connect() -> Ring:
            host = self._ctx.address or _LOOPBACK
            return Ring(members, rank, host, self._timeout, lambda own: self._blocking.wait_for(lambda: swap(own)))

        self._ring = await self._blocking.run(connect)

    async def _add_up_in_ring(self) -> None:
        """Add up `_mean`, in a thread."""
        assert self._ring is not None
        with Waiting(self._ctx, self._edge):
            await self._blocking.run(self._ring.add_up, self._mean)
        sent = self._ring.sent_bytes(self._mean)
        self._ctx.count_traffic(self._edge, sent, sent)  # each byte counts at its sender

    def _abandon(self) -> None:
        """End the connections of the ring, so that no member waits for this learner."""
        if self._ring is not None:
            self._ring.close()
        self._ring = None

    async def _vote(self, stage: _Stage, rows: int) -> list[_Message]:
        ring = 0 if self._ring is None else self._ring.number
        return await self._send(_Message(self._member, stage, rows, ring))

    async def _send(self, message: _Message) -> list[_Message]:
        """Send a message to all members, and return those of all, in their order. Raises `LeftGroup`."""
        return [_Message.decode(reply) for reply in await self.gather(message.encode())]
