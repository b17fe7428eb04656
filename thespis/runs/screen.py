"""What a person sees of a run: a live panel on a terminal or in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from thespis.runs.notebook import NotebookDisplay, in_notebook
from thespis.runs.progress import Lines, Panel
from thespis.runs.view import View

_REFRESH_SECONDS = 0.25
_NOTEBOOK_SECONDS = 0.5
"""Every update of a notebook crosses a network as HTML."""


class Screen:
    """Shows views and says single lines, without either spoiling the other."""

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
        """A panel is redrawn a few times a second, whatever the run's own clock does."""
        self._newest = view
        if self._panel is not None and time.monotonic() - self._drawn >= self._every:
            self._drawn = time.monotonic()
            self._show(self._panel.update, view)

    def report(self, view: View) -> None:
        """A row of metrics was written."""
        if self._lines is not None:
            self._show(self._lines.update, view)

    def say(self, line: str) -> None:
        if self._notebook is not None:
            self._notebook.say(line)
        else:
            self._show(lambda: self._console.print(line, soft_wrap=True, markup=False))

    def close(self) -> None:
        """Take the panel off the terminal. In a notebook it stays, as it was last."""
        if isinstance(self._panel, Panel):
            self._show(self._panel.__exit__, None, None, None)
        elif self._panel is not None and self._newest is not None:
            self._panel.update(self._newest)
        self._panel = None

    def _show(self, draw: Callable[..., Any], *args: Any) -> None:
        """Draw. Nobody looking any more (a closed terminal, `| head`) is no reason to end a run."""
        try:
            draw(*args)
        except OSError:
            self._console.quiet = True
            self._panel = self._lines = None
            for stream in (sys.stdout, sys.stderr):
                _silence(stream)


def _silence(stream: Any) -> None:
    """Let what is still written to a stream that nobody reads go nowhere, also at the interpreter's exit."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
