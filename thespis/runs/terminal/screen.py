"""Screen: shows a run as a live panel on a terminal or in a notebook, as plain lines elsewhere, or not at all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from thespis.runs.terminal.notebook import NotebookDisplay, in_notebook
from thespis.runs.terminal.panel import Lines, Panel
from thespis.runs.terminal.view import View

_REFRESH_SECONDS = 0.25
_NOTEBOOK_SECONDS = 0.5
"""Seconds between updates of a notebook, each of which crosses the network as HTML."""


class Screen:
    """Shows views and messages, so that neither disturbs the other."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._panel: Panel | NotebookDisplay | None = None
        self._notebook: NotebookDisplay | None = None
        self._lines: Lines | None = None
        self._every = _REFRESH_SECONDS
        self._drawn = 0.0
        self._newest: View | None = None
        if quiet:
            return
        if in_notebook():
            self._panel = self._notebook = NotebookDisplay()
            self._every = _NOTEBOOK_SECONDS
        elif self._console.is_terminal:
            self._panel = Panel(self._console).__enter__()
        else:
            self._lines = Lines(sys.stdout)

    def refresh(self, view: View) -> None:
        """Redraw the panel a few times per real second, independent of the run's own clock."""
        self._newest = view
        if self._panel is not None and time.monotonic() - self._drawn >= self._every:
            self._drawn = time.monotonic()
            self._show(self._panel.update, view)

    def report(self, view: View) -> None:
        """Print a line after a row of metrics was written, if there is no panel."""
        if self._lines is not None:
            self._show(self._lines.update, view)

    def say(self, line: str) -> None:
        """Print one message."""
        if self._notebook is not None:
            self._notebook.say(line)
        else:
            self._show(lambda: self._console.print(line, soft_wrap=True, markup=False))

    def close(self) -> None:
        """Remove the panel from the terminal. A notebook keeps the last one."""
        if isinstance(self._panel, Panel):
            self._show(self._panel.__exit__, None, None, None)
        elif self._panel is not None and self._newest is not None:
            self._panel.update(self._newest)
        self._panel = None

    def _show(self, draw: Callable[..., Any], *args: Any) -> None:
        """Draw; a closed terminal or pipe (`| head`) must not end the run."""
        try:
            draw(*args)
        except OSError:
            self._console.quiet = True
            self._panel = self._lines = None
            for stream in (sys.stdout, sys.stderr):
                _silence(stream)


def _silence(stream: Any) -> None:
    """Redirect a broken stream to /dev/null, so that the interpreter's exit does not fail on it."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
