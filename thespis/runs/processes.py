"""Resource use of a run's processes, for summary.json."""

from __future__ import annotations

from typing import Any

from thespis.core.program import Program
from thespis.runs.monitor import Monitor


def process_usage(program: Program, monitor: Monitor) -> dict[str, dict[str, Any]]:
    """By kind of process: total CPU seconds, and mean peak memory.

    Roles that share a process cannot be separated here. The simulation has no processes: null.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for process, specs in program.processes.items():
        first = specs[0]
        name = first.role if len(specs) == 1 else process.removesuffix(f"-{first.index}")
        if name in kinds:
            kinds[name]["count"] += 1
            continue
        sizes = [size for size in monitor.rss_mb.get(first.role, {}).values() if size]
        kinds[name] = {
            "roles": [spec.role for spec in specs],
            "count": 1,
            "cpu_seconds": monitor.cpu_seconds.get(first.role),
            "rss_mb": sum(sizes) / len(sizes) if sizes else None,
        }
    return kinds
