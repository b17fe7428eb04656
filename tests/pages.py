"""The pages of the documentation, and the commands on them."""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("tutorials/*.md")),
    *sorted(DOCS.glob("reference/*.md")),
]


def blocks(text: str) -> str:
    """Return the text between fences, with continued lines joined."""
    return "\n".join(text.split("```")[1::2]).replace("\\\n", " ")


def commands(page: Path) -> list[list[str]]:
    """Return the words of each `thespis` command in the code of a page."""
    lines = (line.strip() for line in blocks(page.read_text()).splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("thespis ")]
