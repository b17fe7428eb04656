"""A running process of a program, as its supervisor sees it."""

from __future__ import annotations

from typing import Protocol


class Gone(RuntimeError):
    """A process ended before it answered."""


class Member(Protocol):
    """A running process."""

    name: str
    up: bool
    """It has built its roles and reported: from now on it can be asked."""
    failure: tuple[str, str, bool] | None
    """What went wrong: who and what in a line, the traceback, and whether the user can mend it."""

    @property
    def ending(self) -> str:
        """How it ended, if it said nothing itself."""
        ...

    def kill(self) -> None: ...
