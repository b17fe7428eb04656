"""Prints pip constraints for the oldest dependencies that pyproject.toml allows, or none for the newest.

    python tests/constraints.py oldest
    python tests/constraints.py newest

The tools of the `dev` and `docs` extras are not constrained.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
LOWER_BOUND = re.compile(r"(?P<name>[\w-]+)(?:\[[\w,-]+\])?>=(?P<version>[\d.]+)")


def oldest(project: dict[str, Any]) -> list[str]:
    """Return the lower bound of every dependency of users, as a pin."""
    extras = project["optional-dependencies"].items()
    groups = [project["dependencies"], *(group for name, group in extras if name not in ("dev", "docs"))]
    found = [LOWER_BOUND.fullmatch(requirement) for group in groups for requirement in group]
    return sorted({f"{each['name']}=={each['version']}" for each in found if each})


def main(words: list[str]) -> int:
    if words == ["oldest"]:
        print("\n".join(oldest(tomllib.loads(PYPROJECT.read_text())["project"])))
    return 0 if words in (["oldest"], ["newest"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
