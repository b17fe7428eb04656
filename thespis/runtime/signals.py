"""Signals to a runtime that has the main thread to itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class Signals:
    """Turns SIGINT and SIGTERM into an orderly stop; a second SIGINT interrupts as usual."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._old: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._stop()
