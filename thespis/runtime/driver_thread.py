"""Run a program from a thread with a running event loop, as in a notebook: the driver gets its own thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from thespis.runtime.env_watchdog import ABANDON
from thespis.runtime.signals import stop_on_signal

_ABANDON_SECONDS = 5.0
"""How long the caller waits for the end of a run after a second interrupt."""


class Runtime(Protocol):
    """Runs a program. `interrupt` and `abandon` are called from other threads."""

    def run(self, restore: Path | None) -> dict[str, Any]:
        """Run the program, from a checkpoint if given; return the summary."""

    def interrupt(self) -> None:
        """End the run with a checkpoint."""

    def abandon(self) -> None:
        """End the run now; the last checkpoint remains."""


def run_program(runtime: Runtime, restore: Path | None) -> dict[str, Any]:
    """Run in this thread, or in a new thread if this one has a running event loop."""
    return _run_in_thread(runtime, restore) if _has_running_loop() else runtime.run(restore)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(runtime: Runtime, restore: Path | None) -> dict[str, Any]:
    """Run in a new thread and wait. The first interrupt ends the run with a checkpoint, the second at once."""
    outcome: Future[dict[str, Any]] = Future()
    # A notebook assigns output to cells by context variables.
    context = contextvars.copy_context()
    context.run(ABANDON.set, outcome.set_exception)

    def drive() -> None:
        try:
            summary = context.run(runtime.run, restore)
        except BaseException as error:
            if not outcome.done():  # else the run was abandoned
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(summary)

    thread = threading.Thread(target=drive, name="thespis-driver", daemon=True)
    try:
        with stop_on_signal(runtime.interrupt):
            thread.start()
            summary = outcome.result()
    except KeyboardInterrupt:
        runtime.abandon()
        thread.join(_ABANDON_SECONDS)
        raise
    thread.join()  # it has set the outcome as its last act
    return summary
