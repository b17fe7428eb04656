"""Writes the graph of every architecture: the stored text in tests/architecture, and the diagrams in docs.

    python tests/graphs.py

A diagram in docs is the mermaid block below the `thespis show` command that draws it. test_graphs.py checks that
all of them are current.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

from thespis.cli.main import main as thespis
from thespis.training.registry import architectures

ROOT = Path(__file__).resolve().parents[1]
DIAGRAM = re.compile(r"`thespis (show [^`\n]*--format mermaid)`[^\n]*\n\n```mermaid\n(.*?)```", re.DOTALL)


def stored(name: str) -> Path:
    return ROOT / "tests" / "architecture" / f"{name}.txt"


def page(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def drawn(markdown: str) -> list[str]:
    """Return the names whose diagrams a page has: architectures and short names."""
    return [command.split()[1] for command, _ in DIAGRAM.findall(markdown)]


def pages() -> list[Path]:
    """Return the pages with diagrams."""
    return [path for path in sorted((ROOT / "docs").glob("*.md")) if "```mermaid" in path.read_text()]


def show(words: list[str]) -> str:
    """Return the output of a `thespis show` command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = thespis(words)
    if code != 0:
        raise RuntimeError(f"thespis {' '.join(words)} exits with {code}")
    return printed.getvalue()


def text(name: str) -> str:
    return show(["show", name, "--actors", "2"])


def with_diagrams(markdown: str) -> str:
    """Return a page with all diagrams redrawn."""

    def redraw(found: re.Match[str]) -> str:
        return found[0].removesuffix(f"{found[2]}```") + show(found[1].split()) + "```"

    return DIAGRAM.sub(redraw, markdown)


def main() -> int:
    for name in architectures():
        stored(name).write_text(text(name))
    for path in pages():
        path.write_text(with_diagrams(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
