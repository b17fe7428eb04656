"""What a person sees of a run: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time

from rich.console import Console

from thespis.runs.progress import Lines, Panel
from thespis.runs.view import View

_REFRESH_SECONDS = 0.25


class Screen:
    """Shows views and says single lines, without either spoiling the other."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._panel: Panel | None = None
        self._lines: Lines | None = None
        self._drawn = 0.0
        if quiet:
            self._console.quiet = True
        elif self._console.is_terminal:
            self._panel = Panel(self._console).__enter__()
        else:
            self._lines = Lines(sys.stdout)

    def refresh(self, view: View) -> None:
        """A panel is redrawn a few times a second, whatever the run's own clock does."""
        if self._panel is not None and time.monotonic() - self._drawn >= _REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._panel.update(view)

    def report(self, view: View) -> None:
        """A row of metrics was written."""
        if self._lines is not None:
            self._lines.update(view)

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        if self._panel is not None:
            self._panel.__exit__(None, None, None)
            self._panel = None
