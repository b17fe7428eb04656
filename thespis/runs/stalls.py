"""Noticing that a run has stalled: no update for too long, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

from thespis.runs.monitor import Monitor

_START_SECONDS = 300.0
"""How long processes may take to start before the run counts as stalled: imports over a network can take minutes."""


class StallDetector:
    """Knows when the newest update was made."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._updates, self._since = 0, 0.0

    def begin(self, updates: int, now: float) -> None:
        """Count from now on: nobody can be expected to have learned before."""
        self._updates, self._since = updates, now

    def resume(self, updates: int, now: float) -> None:
        """Go on from a checkpoint, unless nothing was learned since the one before: else that would hide a stall."""
        if updates != self._updates:
            self.begin(updates, now)

    def look(self, monitor: Monitor, now: float, starting: Sequence[str] = ()) -> str | None:
        """Who waits for whom, once there has been no update for the stall timeout.

        `starting`: processes that have not built their roles yet. A busy machine may take long to start them.
        """
        if monitor.updates != self._updates or any(monitor.away.values()):
            self.begin(monitor.updates, now)
        limit = max(self._timeout, _START_SECONDS) if starting else self._timeout
        if now - self._since < limit:
            return None
        absent = "".join(f"; {home} has not started" for home in starting)
        return f"no update for {limit:g} s; {who_waits(monitor)}{absent}"


def who_waits(monitor: Monitor) -> str:
    """Which role waits for which edge, in a line."""
    waits = [f"{role} {index} waits for {edge}" for (role, index), edge in sorted(monitor.waiting.items()) if edge]
    return "; ".join(waits) if waits else "no role is waiting on another"
