"""A call to another process, and its pending reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol


class RemoteCall(NamedTuple):
    """One call. `settled`: the caller has the replies to all sequence numbers below it."""

    caller: tuple[str, int, int]
    sequence: int
    settled: int
    service: tuple[str, int]
    method: str
    args: tuple[Any, ...]


class ReplySource(Protocol):
    """A connection on which replies arrive."""

    def poll(self, seconds: float = 0.0) -> None:
        """Process messages that have arrived; block up to `seconds` for the first."""


class PendingReply(asyncio.Future[Any]):
    """The future reply to a call, and the connection it arrives on. `connection` is None while there is none."""

    def __init__(self, connection: ReplySource | None) -> None:
        super().__init__()
        self.connection = connection


def fail_replies(replies: Iterable[asyncio.Future[Any]], session: asyncio.Future[None]) -> None:
    """Fail pending replies with the error of `session`, the finished task that kept the stream open."""
    for reply in replies:
        if reply.done():
            continue
        if session.cancelled():
            reply.cancel()
        else:
            reply.set_exception(session.exception() or ConnectionError("the stream is closed"))
