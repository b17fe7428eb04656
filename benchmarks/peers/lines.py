"""What every driver prints: a line of JSON now and then, with environment steps, seconds, and the return.

Drivers run in the virtual environment of the library they drive, so this needs the standard library only.
Seconds count from the first environment step; the return is the mean of the last 100 training episodes, exploration
included, of all environments together, and null before there are 100. Steps are actions, frame-skip not multiplied.
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
    """Prints lines, and knows when it is enough: `until` is reached, or `seconds` have passed."""

    def __init__(self, until: float | None, seconds: float) -> None:
        self._until, self._seconds = until, seconds
        self._started = self._printed = time.monotonic()

    def start(self) -> None:
        """The first environment step is about to be taken."""
        self._started = self._printed = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._printed >= _SECONDS_BETWEEN

    def report(self, steps: int, returns: Sequence[float]) -> bool:
        """Print a line if it is time for one. Returns whether to stop; say it at the same point of each iteration."""
        if not self.due:
            return False
        self._printed = time.monotonic()
        mean = sum(returns) / len(returns) if len(returns) >= EPISODES else None
        seconds = self._printed - self._started
        print(json.dumps({"steps": int(steps), "seconds": seconds, "return": mean}), flush=True)
        return seconds >= self._seconds or (self._until is not None and mean is not None and mean >= self._until)


def arguments() -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line of every driver, and the settings in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algorithm", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, help="mean return at which to stop")
    parser.add_argument("--seconds", type=float, default=20.0, help="when to stop at the latest")
    parser.add_argument("--settings", type=json.loads, default={}, help="the driver's own, as JSON")
    args = parser.parse_args()
    return args, dict(args.settings)
