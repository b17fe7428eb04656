"""Both sides of the heartbeat edge between a learner or worker and the role that waits for its gradients.

The runtime cancels the pending calls of a process at once when the process ends. So the receiver keeps one heartbeat of
every sender pending, and notices the end of a sender without waiting for a timeout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from thespis.core.futures import new_future

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Heartbeat
    from thespis.core.payloads import Member


async def send_heartbeats(ctx: Context, heartbeat: Heartbeat, member: Member) -> None:
    """Send heartbeats forever. Two calls are in flight, because the receiver keeps one until the next arrives."""
    pending = ctx.ahead(heartbeat(member))
    while True:
        following = ctx.ahead(heartbeat(member))
        await pending
        pending = following


class PendingHeartbeats:
    """The newest heartbeat of each sender."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two heartbeats of a sender."""
        self._interval = interval
        self._pending: dict[Member, asyncio.Future[None]] = {}

    async def keep(self, member: Member) -> None:
        """Return when the sender's next heartbeat has arrived, and at least `interval` has passed."""
        self.end(member)
        following = self._pending[member] = new_future()
        await asyncio.sleep(self._interval)
        await following

    def end(self, member: Member) -> None:
        """Let the pending heartbeat of a sender return, because the next has arrived or the sender has left."""
        pending = self._pending.pop(member, None)
        if pending is not None and not pending.done():
            pending.set_result(None)
