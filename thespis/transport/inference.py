"""What an inference server and the channels that lead to it know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from thespis.core.messages import Answer, Invitation
from thespis.core.types import Stream
from thespis.experience.seats import Told


class Asker(Protocol):
    """Who waits for an answer."""

    @property
    def gone(self) -> bool:
        """Whether nobody waits any longer."""

    def give(self, answer: Answer) -> None: ...


Ask = Callable[[Told, Asker], None]


class AnyDoor(Protocol):
    """Where actors come in with streams of their own."""

    async def invite(self, stream: Stream, ask: Ask) -> Invitation: ...

    async def close(self) -> None: ...
