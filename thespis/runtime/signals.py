"""Handlers of the signals that end a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def ending_signals() -> list[signal.Signals]:
    """Return the signals that save and end a run: SIGINT, SIGTERM, and SIGHUP unless `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def ignore_ending_signals() -> None:
    """Ignore the ending signals until the process exits. Python removes other handlers at shutdown."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def kept_handlers() -> Iterator[list[signal.Signals]]:
    """Yield the ending signals whose handlers this thread may set; restore the old handlers afterwards."""
    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.getsignal(number) for number in ending_signals()} if main else {}
    try:
        yield list(old)
    finally:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python


@contextmanager
def handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` on an ending signal, if this is the main thread; restore the old handlers afterwards.

    Handlers nest without a gap. An event loop's `add_signal_handler` would restore the default action when the loop
    closes, and SIGTERM would then kill a driver that still writes files.
    """
    with kept_handlers() as numbers:
        for number in numbers:
            signal.signal(number, lambda received, _: handle(received))
        yield


def stop_on_signal(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `stop` on an ending signal; a second SIGINT raises KeyboardInterrupt as usual."""

    def handle(number: int) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    return handled(handle)


def interrupt_unless(over: Callable[[], bool]) -> AbstractContextManager[None]:
    """Handle the ending signals while no runtime does: before the run and after it.

    Each signal raises KeyboardInterrupt, so that a failed start cleans up. Once the run is `over`, the first signal is
    ignored: the process is about to exit with the result of the run.
    """
    dropped = False

    def handle(number: int) -> None:
        nonlocal dropped
        if dropped or not over():
            raise KeyboardInterrupt
        dropped = True

    return handled(handle)
