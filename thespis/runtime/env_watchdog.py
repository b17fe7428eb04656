"""Ends a call of an environment that hangs in the driver's own process, which no supervisor can kill.

The simulation and the check of its settings call environments in the driver. A thread watches the status page, as the
supervisor of the local runtime does. It interrupts the hanging call by an exception; a signal delivers it in the main
thread, because an exception alone does not end a blocking system call.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from thespis.core.errors import ThespisError
from thespis.core.watchdog import set_env_status
from thespis.runtime.process import Status, status_page

_GRACE_SECONDS = 5.0
"""How long an interrupted call may take to raise. Native code may never do so."""
_POLL_SECONDS = 0.25
_ENDING_SECONDS = 10.0
"""How long a call may take once the run ends."""
_SIGNAL = signal.SIGRTMIN + 7
"""Interrupts the main thread. Libraries rarely use real-time signals."""
_DEBUGGERS = ("bdb", "pydevd", "_pydevd_bundle")

ABANDON: contextvars.ContextVar[Callable[[Exception], None] | None] = contextvars.ContextVar("abandon", default=None)
"""Fails a run whose thread cannot be interrupted, and leaves the thread behind. Without it, the process exits."""


class EnvHang(BaseException):
    """Raised inside a call of an environment that took too long. `except Exception` in its code does not catch it."""


class EnvWatchdog:
    """Watches the calls of environments in the thread that enters it."""

    def __init__(self, limit: float, give_up: Callable[[str], None] = lambda what: None) -> None:
        """`limit`: seconds that a call may take. `give_up(what)`: called before the run is abandoned."""
        self.limit = limit
        self.who = ""
        """The role that uses the environments."""
        self._give_up = give_up
        page = status_page("driver")
        self.status = Status(page)
        os.close(page)
        self._over = threading.Event()
        self._what: str | None = None

    def __enter__(self) -> EnvWatchdog:
        self._driver, self._abandon = threading.current_thread(), ABANDON.get()
        self._outer = set_env_status(self.status)
        if self._driver is threading.main_thread():
            self._handler = signal.signal(_SIGNAL, self._on_signal)
        self._thread = threading.Thread(target=self._watch, name="thespis-env-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        if self._driver is threading.main_thread():
            signal.signal(_SIGNAL, self._handler)
        set_env_status(self._outer)

    def hurry(self) -> None:
        """Shorten the limit, because the run ends."""
        self.limit = min(self.limit, _ENDING_SECONDS)

    @contextmanager
    def step(self, who: str) -> Iterator[None]:
        """Wrap the steps of a role's environments."""
        self.who = f"{who}: "
        self.status.begin(time.monotonic())
        try:
            yield
        finally:
            self.status.end()

    def _watch(self) -> None:
        while not self._over.wait(min(_POLL_SECONDS, self.limit / 4)):
            what = self._stuck()
            if what is None:
                continue
            self._what = what
            self._interrupt()
            if not self._over.wait(_GRACE_SECONDS) and self._stuck() == what:
                self._leave(what)
                return

    def _stuck(self) -> str | None:
        what = self.status.stuck(self.limit)
        return None if what is None or self._is_debugged() else f"{self.who}EnvError: {what}"

    def _is_debugged(self) -> bool:
        """Whether the driver's thread is in a debugger, where a person takes time."""
        frame = sys._current_frames().get(self._driver.ident or 0)
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
                return True
            frame = frame.f_back
        return False

    def _interrupt(self) -> None:
        thread = self._driver.ident or 0
        if self._driver is threading.main_thread():
            signal.pthread_kill(thread, _SIGNAL)
        else:
            what = type("EnvHang", (EnvHang,), {"__str__": lambda _, text=self._what: text})
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.status.location is not None and self._what is not None:  # else the call has just returned
            raise EnvHang(self._what)

    def _leave(self, what: str) -> None:
        what = f"{what}, and cannot be interrupted"
        with suppress(Exception):
            self._give_up(what)
        if self._abandon is not None:
            self._abandon(ThespisError(what))
            return
        print(f"thespis: {what}", file=sys.stderr, flush=True)
        os._exit(1)
