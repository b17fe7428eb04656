"""The measured parts of pages in docs/, between two comments, and a description of the machine."""

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
"""Directory of the results as JSON. An interrupted benchmark continues from them."""


def machine() -> str:
    """Describe cores, CPU and memory of this machine."""
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
    """Replace the text between `<!-- part -->` and `<!-- /part -->`; the rest of the page is written by hand."""
    before, opening, rest = page.read_text().partition(f"<!-- {part} -->")
    _, closing, after = rest.partition(f"<!-- /{part} -->")
    if not closing:
        raise SystemExit(f"{page} has no part <!-- {part} --> ... <!-- /{part} -->")
    page.write_text(f"{before}{opening}\n\n{text.strip()}\n\n{closing}{after}")


def load(name: str) -> dict[str, Any]:
    """Return the saved results of this name; empty if there are none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, results: dict[str, Any]) -> None:
    """Save all results atomically; the next call continues from them."""
    RESULTS.mkdir(exist_ok=True)
    half = RESULTS / f"{name}.json.half"
    half.write_text(json.dumps(results, indent=1))
    half.replace(RESULTS / f"{name}.json")
