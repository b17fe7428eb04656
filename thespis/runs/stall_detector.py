"""StallDetector: detects a run without updates, and reports which role waits for which."""

from __future__ import annotations

from collections.abc import Sequence

from thespis.runs.monitor import Monitor

_START_SECONDS = 300.0
"""Seconds that processes may take to start before the run counts as stalled: imports over a network can take
minutes."""


class StallDetector:
    """Tracks the time of the newest update."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._updates, self._since = 0, 0.0

    def begin(self, updates: int, now: float) -> None:
        """Restart the timer."""
        self._updates, self._since = updates, now

    def resume(self, updates: int, now: float) -> None:
        """Restart the timer after a restore, unless there was no update since the last one: that would hide a stall."""
        if updates != self._updates:
            self.begin(updates, now)

    def check(self, monitor: Monitor, now: float, starting: Sequence[str] = ()) -> str | None:
        """The waiting roles as text, once there has been no update for the stall timeout; else None.

        `starting`: processes that have not built their roles yet. A busy machine may take long to start them.
        """
        if monitor.updates != self._updates or any(monitor.in_job.values()):
            self.begin(monitor.updates, now)
        limit = max(self._timeout, _START_SECONDS) if starting else self._timeout
        if now - self._since < limit:
            return None
        absent = "".join(f"; {process} has not started" for process in starting)
        return f"no update for {limit:g} s; {who_waits(monitor)}{absent}"


def who_waits(monitor: Monitor) -> str:
    """Which role waits for which edge, as text."""
    waits = [f"{role} {index} waits for {edge}" for (role, index), edge in sorted(monitor.waiting.items()) if edge]
    return "; ".join(waits) if waits else "no role is waiting on another"
