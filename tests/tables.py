"""Writes the table of algorithms in docs/algorithms.md from the code.

    python tests/tables.py

test_tables.py checks that it is current.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from thespis.algorithms import algorithms, carried_items
from thespis.training.registry import PAIRS, architecture, architectures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "algorithms.md"
PLACE = re.compile(r"(?<=<!-- algorithms -->\n).*?(?=<!-- end -->)", re.DOTALL)


def fields(config: type[Any]) -> set[str]:
    return {part.name for part in dataclasses.fields(config)}


def carriers(kind: str) -> list[str]:
    """Return the architectures that carry a kind of item."""
    configs = {name: architecture(name).Config for name in architectures()}
    return [name for name, config in configs.items() if "algorithm" in fields(config) and kind in carried_items(config)]


def table() -> str:
    rows = ["| `--algorithm` | learns from | architectures that carry it | short name |", "|---|---|---|---|"]
    for name, value in algorithms().items():
        carrying = ", ".join(map(_linked, carriers(value.items.KIND)))
        short = ", ".join(
            f"{_linked(pair)}, in `{where}`" for pair, (where, learned) in PAIRS.items() if learned == name
        )
        rows.append(f"| `{name}` | {value.items.KIND} | {carrying} | {short} |")
    return "\n".join(rows) + "\n"


def _linked(name: str) -> str:
    return f"[`{name}`]({name}.md)"


def with_table(markdown: str) -> str:
    """Return the page with a new table."""
    return PLACE.sub(lambda _: table(), markdown)


def main() -> int:
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
