"""The display of a run in a notebook: one output below the cell, updated in place."""

from __future__ import annotations

import html
import io
import sys
from typing import Any

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from thespis.runs.terminal.panel import WIDTH, line, render
from thespis.runs.terminal.view import View

_STYLE = "background:#292929;color:#c5c8c6;padding:0.5em;line-height:1.2;overflow-x:auto;white-space:pre"


def in_notebook() -> bool:
    """Whether this process is an IPython kernel. Does not import IPython: a kernel has it loaded."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """The panel with messages below it, and plain text for front ends without HTML."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._lines: list[str] = []
        self._handle: Any = None

    def update(self, view: View) -> None:
        """Show `view` in the panel."""
        self._view = view
        self._show()

    def say(self, text: str) -> None:
        """Add a message below the panel."""
        self._lines.append(text)
        self._show()

    def _show(self) -> None:
        from IPython.display import display

        data = {"text/html": self._html(), "text/plain": self._text()}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)

    def _text(self) -> str:
        return "\n".join([*([] if self._view is None else [line(self._view)]), *self._lines])

    def _html(self) -> str:
        panel = "" if self._view is None else f'<pre style="{_STYLE}">{_panel(self._view)}</pre>'
        messages = html.escape("\n".join(self._lines))
        return panel + (f"<pre>{messages}</pre>" if messages else "")


def _panel(view: View) -> str:
    # force_jupyter=False: rich would otherwise create displays of its own.
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", force_jupyter=False
    )
    console.print(render(view, WIDTH))
    return console.export_html(theme=SVG_EXPORT_THEME, code_format="{code}", inline_styles=True)
