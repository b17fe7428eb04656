"""The output of every driver: at intervals a line of JSON with environment steps, seconds and the return.

Drivers run in the virtual environment of their library, so this module uses the standard library only. Seconds count
from the first environment step. The return is the mean of the last 100 training episodes of all environments, with
exploration, and null before there are 100. Steps are actions; frame skip is not multiplied.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

EPISODES = 100
_SECONDS_BETWEEN = 0.25


class Lines:
    """Prints lines, and reports when to stop: the return reaches `until`, or `seconds` have passed."""

    def __init__(self, until: float | None, seconds: float) -> None:
        self._until, self._seconds = until, seconds
        self._started = self._printed = time.monotonic()

    def start(self) -> None:
        """Start the clock; call it before the first environment step."""
        self._started = self._printed = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._printed >= _SECONDS_BETWEEN

    def report(self, steps: int, returns: Sequence[float]) -> bool:
        """Print a line if one is due, and return whether to stop. Call it at the same point of each iteration."""
        if not self.due:
            return False
        self._printed = time.monotonic()
        mean = sum(returns) / len(returns) if len(returns) >= EPISODES else None
        seconds = self._printed - self._started
        print(json.dumps({"steps": int(steps), "seconds": seconds, "return": mean}), flush=True)
        return seconds >= self._seconds or (self._until is not None and mean is not None and mean >= self._until)


def arguments() -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the command line of a driver; return it and the settings in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algorithm", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, help="mean return at which to stop")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the driver, as JSON")
    args = parser.parse_args()
    return args, dict(args.settings)
