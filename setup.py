"""The long description of the distribution: README.md with absolute links.

README.md links to files of the repository by relative paths, which work in every clone. A package index shows the same
text on its own pages, where such links and pictures lead nowhere.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PICTURES = (".png", ".svg", ".gif", ".jpg", ".webp")
TARGET = re.compile(r'(?P<before>\]\(|\b(?:src|href|srcset)=")(?![a-z]+:|#|/)(?P<path>[^)"\s]+)')
"""The relative target of a Markdown link or of an HTML attribute."""


def absolute_links(markdown: str, repository: str) -> str:
    """The text with every relative target below `repository`. Fenced code stays as it is."""

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["path"].endswith(PICTURES) else "blob"
        return f"{found['before']}{repository}/{kind}/HEAD/{found['path']}"

    fenced = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else TARGET.sub(absolute, part) for part in fenced)


def long_description() -> str:
    """README.md for a package index."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    return absolute_links((ROOT / "README.md").read_text(), urls["Repository"])


if __name__ == "__main__":  # the build executes this file under that name; the tests import it
    from setuptools import setup

    setup(long_description=long_description(), long_description_content_type="text/markdown")
