"""The signals that end a run, from its start to its last file."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def ending_signals() -> list[signal.Signals]:
    """Signals that save and end a run: Ctrl-C, termination, and the end of the terminal unless `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def ignore_ending_signals() -> None:
    """Ignore the ending signals until the process is gone. Other handlers end while the interpreter shuts down."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def kept_handlers() -> Iterator[list[signal.Signals]]:
    """The ending signals whose handlers this thread may set. Whoever sets them meanwhile, the old ones come back."""
    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.getsignal(number) for number in ending_signals()} if main else {}
    try:
        yield list(old)
    finally:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python


@contextmanager
def handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` on an ending signal, if this is the main thread. The old handlers come back afterwards.

    Handlers nest without a gap. An event loop's `add_signal_handler` leaves the default action behind when the loop
    closes, and SIGTERM then kills a driver that has files to finish.
    """
    with kept_handlers() as numbers:
        for number in numbers:
            signal.signal(number, lambda received, _: handle(received))
        yield


def stop_on_signal(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Turn the ending signals into an orderly stop; a second SIGINT interrupts as usual."""

    def handle(number: int) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    return handled(handle)


def interrupt_unless(over: Callable[[], bool]) -> AbstractContextManager[None]:
    """Handle the ending signals while no runtime does: before the run and after it.

    Each one interrupts as Ctrl-C does, so that a start that fails cleans up. Once the run is `over`, the first one is
    dropped: the process is about to end with the result that the run has reached.
    """
    dropped = False

    def handle(number: int) -> None:
        nonlocal dropped
        if dropped or not over():
            raise KeyboardInterrupt
        dropped = True

    return handled(handle)
