"""Calls a run's callbacks in order, outside the driver's event loop, so that a slow one never delays training.

All callbacks share one thread. In the simulation they run in the driver itself: the same run then makes the same calls
at the same virtual times.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError

_MOST_WAITING = 1000
"""Calls that may wait for a slow callback. Further rows are skipped, so that a hanging callback does not fill
memory."""
_END_SECONDS, _SHORT_END_SECONDS, _ANNOUNCE_SECONDS = 300.0, 10.0, 3.0
"""Seconds that the end of a run waits for callbacks: long for uploads, short after Ctrl-C or an error."""
_SHORT_END_REASONS = ("interrupted", "error", "stalled")


class Callbacks:
    """The callbacks of one run. `log(line, show=True)` receives errors, always in the driver's thread."""

    def __init__(self, callbacks: Sequence[tuple[str, Any]], log: Callable[..., None], *, synchronous: bool) -> None:
        self.ending = False
        """The run has ended and waits for `on_end`; an interrupt abandons the callback."""
        self._live = list(callbacks)
        self._log = log
        self._stop = False
        self._failures: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._calls: queue.Queue[tuple[str, Any, Future[None]] | None] = queue.Queue()
        self._behind = False
        self._complained = False
        self._busy = ""
        self._thread: threading.Thread | None = None
        if self._live and not synchronous:
            self._thread = threading.Thread(target=self._work, name="callbacks", daemon=True)
            self._thread.start()

    # -- called by the driver ---------------------------------------------------------------------

    def start(self, run: Any) -> None:
        """Call `on_start` and wait for it. Raises ThespisError if a callback raised, which refuses the run."""
        self._submit("on_start", run).result()

    def report(self, row: dict[str, Any]) -> None:
        """Queue `on_report` with a row of metrics, unless the callbacks are too far behind."""
        if self._calls.qsize() < _MOST_WAITING:
            self._submit("on_report", row)
            return
        if not self._behind:
            self._log(f"callback {self._busy} is {_MOST_WAITING} calls behind; it skips rows until it catches up")
        self._behind = True

    def checkpoint(self, path: Path) -> None:
        """Queue `on_checkpoint`."""
        self._submit("on_checkpoint", path)

    def poll(self) -> bool:
        """Log errors since the last call. True once a callback has requested the end of the run."""
        while not self._failures.empty():
            line, trace = self._failures.get()
            self._log(line)
            if trace:
                self._log(trace, show=False)
        return self._stop

    def end(self, summary: dict[str, Any]) -> None:
        """Call `on_end` after all queued calls. A callback that takes too long is abandoned and named."""
        limit = _SHORT_END_SECONDS if summary["exit_reason"] in _SHORT_END_REASONS else _END_SECONDS
        try:
            self.ending = bool(self._live)
            self._await(self._submit("on_end", summary), limit)
            self.ending = False
        except KeyboardInterrupt:
            self.ending = False
            self._log(f"callback {self._busy} was abandoned")
        self.poll()

    def close(self) -> None:
        """Let the thread exit after its current call."""
        if self._thread is not None:
            self._live.clear()
            self._calls.put(None)
            self._thread.join(1.0)
            self._thread = None

    # -- in the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            method, argument, done = call
            self._call(method, argument, done)

    def _submit(self, method: str, argument: Any) -> Future[None]:
        done: Future[None] = Future()
        if self._thread is None:
            self._call(method, argument, done)
        else:
            self._calls.put((method, argument, done))
        return done

    def _call(self, method: str, argument: Any, done: Future[None]) -> None:
        for entry in list(self._live):
            name, callback = entry
            function = getattr(callback, method, None)
            if function is None:
                continue
            self._busy = name
            try:
                result = function(dict(argument) if isinstance(argument, dict) else argument)
                if method == "on_report":
                    self._handle_result(name, result)
            except BaseException as error:  # the thread must survive: the driver may wait for `done`
                if self._thread is None and isinstance(error, KeyboardInterrupt):
                    raise
                what = f"callback {name}: {method} raised {type(error).__name__}: {error}"
                if method == "on_start":
                    done.set_exception(ThespisError(what))
                    return
                if entry in self._live:
                    self._live.remove(entry)
                self._failures.put((f"{what}; it is not called again", traceback.format_exc()))
        done.set_result(None)

    def _handle_result(self, name: str, result: Any) -> None:
        if isinstance(result, str) and result == "stop":
            self._stop = True
        elif result is not None and not self._complained:
            self._complained = True
            self._failures.put(
                (f"callback {name}: on_report returned {result!r}; return 'stop' to end the run, or nothing", "")
            )

    def _await(self, done: Future[None], limit: float) -> None:
        deadline, announced = time.monotonic() + limit, False
        while True:
            left = deadline - time.monotonic()
            try:
                done.result(min(_ANNOUNCE_SECONDS, max(0.0, left)))
                return
            except TimeoutError:
                if left <= _ANNOUNCE_SECONDS:
                    self._log(f"callback {self._busy} has not finished after {limit:g} s and was abandoned")
                    return
                if not announced:
                    self._log(f"waiting for callback {self._busy} (at most {limit:g} s; Ctrl-C abandons it)")
                    announced = True
