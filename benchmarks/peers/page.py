"""Writes the table in docs/benchmarks.md from the saved runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.pages import table
from benchmarks.peers.plan import ENTRIES, Entry

Runs = Sequence[Mapping[str, Any]]
Results = Mapping[str, Mapping[str, Any]]
"""Settings and runs, by `entry/task`."""


def page(results: Results, versions: Mapping[str, str], failed: Mapping[str, str], machine: str) -> str:
    """Return the measured part of the page. `failed`: why a library could not be installed, by virtual environment."""
    shown = [entry for entry in ENTRIES if any(runs_of(results, entry, task) for task in ("speed", "solve", "pong"))]
    head = ["", "settings", "CartPole steps/s", "ours is", "seconds to 475", "ours is", "Pong steps/s", "ours is", "MB"]
    columns = [
        column(results, shown, "speed", _speed, lambda ours, theirs: ours / theirs, max),
        column(results, shown, "solve", _solved, lambda ours, theirs: theirs / ours, min),
        column(results, shown, "pong", _speed, lambda ours, theirs: ours / theirs, max),
    ]
    rows = []
    for number, entry in enumerate(shown):
        cells = [cell for made in columns for cell in made[number]]
        rows.append([f"{entry.label}", entry.said, *cells, _memory(results, entry)])
    parts = [f"Measured on {machine}.", table(head, rows)]
    if "¹" in parts[-1]:
        parts.append("¹ Fewer than three runs.")
    parts.append("Versions: " + _versions(versions) + ".")
    parts += [f"- {label}: {reason}" for label, reason in _failures(results, failed)]
    return "\n\n".join(parts)


def runs_of(results: Results, entry: Entry, task: str) -> Runs:
    found: Runs = results.get(f"{entry.name}/{task}", {}).get("runs", [])
    return found


def column(
    results: Results,
    entries: Sequence[Entry],
    task: str,
    figure: Callable[[Runs], tuple[float | None, str]],
    ratio: Callable[[float, float], float],
    best: Callable[..., float],
) -> list[tuple[str, str]]:
    """Return the figure of each entry, and how many times better the best result of Thespis is."""
    figures = [figure(runs_of(results, entry, task)) for entry in entries]
    values = [value for value, _ in figures]
    ours = [value for entry, value in zip(entries, values, strict=True) if entry.ours and value is not None]
    cells = []
    for entry, (value, text) in zip(entries, figures, strict=True):
        compared = not entry.ours and value is not None and ours
        cells.append((text, f"{ratio(best(ours), value):.1f}×" if compared and value is not None else "–"))
    return cells


def _speed(runs: Runs) -> tuple[float | None, str]:
    speeds = [run["steps_per_second"] for run in runs if run.get("steps_per_second") and "error" not in run]
    if not speeds:
        return None, "failed" if runs else "–"
    return median(speeds), f"{median(speeds):,.0f}{_mark(runs)}"


def _solved(runs: Runs) -> tuple[float | None, str]:
    """Return the median if most runs reached the return, and the number of those runs unless all did."""
    seconds = sorted(run["seconds_to"] for run in runs if run.get("seconds_to") is not None)
    if not runs or not seconds:
        return None, "not reached" if runs else "–"
    # A run that did not reach the return counts as later than all others.
    middle = median([*seconds, *[float("inf")] * (len(runs) - len(seconds))])
    text = "" if len(seconds) == len(runs) else f" ({len(seconds)} of {len(runs)} runs)"
    if middle == float("inf"):
        return None, f"not reached{text}"
    return middle, f"{middle:.1f}{text}{_mark(runs)}"


def _mark(runs: Runs) -> str:
    """Return the mark of a figure from fewer than three runs."""
    return "" if len(runs) >= 3 else "¹"


def _memory(results: Results, entry: Entry) -> str:
    """Return the medians of the peak memory on CartPole and Pong."""
    cells = []
    for task in ("speed", "pong"):
        peaks = [run["peak_mb"] for run in runs_of(results, entry, task) if run.get("peak_mb")]
        cells.append(f"{median(peaks):,.0f}" if peaks else "–")
    return ", ".join(cells)


def _failures(results: Results, failed: Mapping[str, str]) -> list[tuple[str, str]]:
    found = [(f"{venv} did not install", reason) for venv, reason in failed.items()]
    for entry in ENTRIES:
        for task in ("speed", "solve", "pong"):
            errors = {run["error"] for run in runs_of(results, entry, task) if "error" in run}
            found += [(f"{entry.label} ({task}) did not run", error) for error in sorted(errors)]
    return found


def _versions(versions: Mapping[str, str]) -> str:
    return "; ".join(versions[venv] for venv in sorted(versions))
