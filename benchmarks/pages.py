"""Measured parts of pages in docs/, kept between two marks, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thespis.core.system.cores import available_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""What was measured, as JSON; an interrupted benchmark goes on from there."""


def machine() -> str:
    """Cores, CPU and memory, in a few words."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = available_cores()
    return f"{cores} cores ({model}), {gigabytes:.0f} GB, Linux, Python {platform.python_version()}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replace_part(page: Path, part: str, text: str) -> None:
    """Put `text` between `<!-- part -->` and `<!-- /part -->`; everything else on the page is written by hand."""
    before, opening, rest = page.read_text().partition(f"<!-- {part} -->")
    _, closing, after = rest.partition(f"<!-- /{part} -->")
    if not closing:
        raise SystemExit(f"{page} has no part <!-- {part} --> ... <!-- /{part} -->")
    page.write_text(f"{before}{opening}\n\n{text.strip()}\n\n{closing}{after}")


def load(name: str) -> dict[str, Any]:
    """Results kept under that name; empty if there are none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, results: dict[str, Any]) -> None:
    """Write all results, whole or not at all: the next call goes on from them."""
    RESULTS.mkdir(exist_ok=True)
    half = RESULTS / f"{name}.json.half"
    half.write_text(json.dumps(results, indent=1))
    half.replace(RESULTS / f"{name}.json")
