"""Names environments that hang in their constructor or in `close`, as `Context.locate` does for `reset` and `step`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

EnvPhase = Literal["make", "close"]


class EnvStatus(Protocol):
    """The state of a process's environments, which a watchdog reads from another process."""

    def handle(self, doing: EnvPhase, env: int) -> None:
        """Note that environment `env` (-1: a whole vector) is being made or closed."""

    def end(self) -> None:
        """Note that the constructor or `close` has returned."""
        ...


_status: weakref.ref[EnvStatus] | None = None


def set_env_status(status: EnvStatus | None) -> EnvStatus | None:
    """Set the status that `watch_env` writes to, and return the previous one; a process has one at a time."""
    global _status
    previous = None if _status is None else _status()
    _status = None if status is None else weakref.ref(status)
    return previous


@contextmanager
def watch_env(doing: EnvPhase, env: int = -1) -> Iterator[None]:
    """Wrap a constructor or `close`, so that a watchdog can name the environment if the call hangs."""
    status = None if _status is None else _status()
    if status is None:
        yield
        return
    status.handle(doing, env)
    try:
        yield
    finally:
        status.end()
