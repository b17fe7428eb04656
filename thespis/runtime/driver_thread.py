"""Performing a run from a thread whose event loop is running, as in a notebook: the driver gets a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from thespis.runtime.signals import stop_on_signal

_ABANDON_SECONDS = 5.0
"""How long a run may take to end after a second interrupt, before the caller gets its prompt back regardless."""


class Runtime(Protocol):
    """What performs a program. Only `run` is called in its own thread."""

    def run(self, restore: Path | None) -> dict[str, Any]: ...
    def interrupt(self) -> None:
        """End in order, with a checkpoint."""

    def abandon(self) -> None:
        """End now; the last checkpoint stands."""


def perform(runtime: Runtime, restore: Path | None) -> dict[str, Any]:
    """Perform the run in this thread, or in another one if an event loop is running in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return runtime.run(restore)
    return _perform_in_thread(runtime, restore)


def _perform_in_thread(runtime: Runtime, restore: Path | None) -> dict[str, Any]:
    """Wait for the run. The first interrupt of the waiting thread ends it in order, a second one at once."""
    outcome: Future[dict[str, Any]] = Future()
    # A notebook knows by context variables which cell an output belongs to.
    context = contextvars.copy_context()

    def drive() -> None:
        try:
            outcome.set_result(context.run(runtime.run, restore))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=drive, name="thespis-driver", daemon=True)
    try:
        with stop_on_signal(runtime.interrupt):
            thread.start()
            summary = outcome.result()
    except KeyboardInterrupt:
        runtime.abandon()
        thread.join(_ABANDON_SECONDS)
        raise
    thread.join()
    return summary
