"""A call on its way to another process, and the reply that is awaited for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol


class Call(NamedTuple):
    """One awaited call. `settled`: every sequence number below it has been answered and may be forgotten."""

    caller: tuple[str, int, int]
    sequence: int
    settled: int
    service: tuple[str, int]
    method: str
    args: tuple[Any, ...]


class ReplySource(Protocol):
    """Where replies arrive."""

    def take(self, seconds: float = 0.0) -> None: ...


class PendingReply(asyncio.Future[Any]):
    """The reply to a call that went to another process, and the connection it will arrive on, once there is one."""

    def __init__(self, line: ReplySource | None) -> None:
        super().__init__()
        self.line = line


def fail(answers: Iterable[asyncio.Future[Any]], kept: asyncio.Future[None]) -> None:
    """Tell whoever waits for an answer why none will come. `kept`: what saw to it that there was a stream."""
    for answer in answers:
        if answer.done():
            continue
        if kept.cancelled():
            answer.cancel()
        else:
            answer.set_exception(kept.exception() or ConnectionError("the stream has ended"))
