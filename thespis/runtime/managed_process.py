"""The supervisor's view of a running process."""

from __future__ import annotations

from typing import Protocol


class ProcessExited(RuntimeError):
    """A process exited before it replied to a command."""


class ManagedProcess(Protocol):
    """A running process."""

    name: str
    up: bool
    """The process has built its roles and accepts commands."""
    failure: tuple[str, str, bool] | None
    """An error of the process: one line, the traceback, and whether the user can fix it."""

    @property
    def ending(self) -> str:
        """How the process ended, if it reported no error."""
        ...

    def kill(self) -> None:
        """Kill the process."""
