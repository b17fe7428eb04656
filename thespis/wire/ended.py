"""What becomes of questions when there will be no stream any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


def fail(answers: Iterable[asyncio.Future[Any]], kept: asyncio.Future[None]) -> None:
    """Tell whoever waits for an answer why none will come. `kept`: what saw to it that there was a stream."""
    for answer in answers:
        if answer.done():
            continue
        if kept.cancelled():
            answer.cancel()
        else:
            answer.set_exception(kept.exception() or ConnectionError("the stream has ended"))
