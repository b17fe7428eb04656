"""The history of a population as a plot and in words."""

from __future__ import annotations

import importlib.util
from itertools import cycle
from pathlib import Path
from typing import Any

from thespis.population.exploit import best
from thespis.population.history import HistoryRow, MemberState, read_history
from thespis.runs.terminal.formatting import format_number

PLOT_FILE = "ancestry.png"
_COLOURS = ("#2a78b5", "#e07b39", "#3a9d5d", "#8d5fa8", "#b8433f", "#5f6b6d", "#b59a2a", "#3aa6a0")


def describe_ancestry(directory: Path) -> list[str]:
    """Lines that name the best member, its hyper-parameters and its ancestors."""
    rows = read_history(directory)
    members: dict[int, MemberState] = {}
    for row in rows:
        known = members.get(row.member)
        members[row.member] = MemberState(row.run, row.after) if known is None else known.after(row)
    leader = best([members[member].score for member in sorted(members)])
    if leader is None:
        return []
    hypers = ", ".join(f"{path} {_short(value)}" for path, value in members[leader].hypers.items())
    copies = sum(row.event == "copy" for row in rows)
    return [
        f"  member {leader} leads with {format_number(members[leader].score)}: {hypers}",
        f"  its ancestors: {' < '.join(map(str, ancestors(rows, leader)))}; copies in total: {copies}",
    ]


def ancestors(rows: list[HistoryRow], member: int) -> list[int]:
    """The members whose weights this member inherited, newest first, back to the one that started from scratch."""
    chain = [member]
    for row in reversed(rows):
        if row.member != chain[-1] or row.event in ("start", "ready"):
            continue
        if row.parent is None:
            break
        chain.append(row.parent)
    return chain


def draw_ancestry(directory: Path) -> str:
    """Plot returns and hyper-parameters of all members over steps; a thin line marks every copy."""
    if importlib.util.find_spec("matplotlib") is None:
        return '  no plot of the population: pip install "thespis[plots]"'
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_history(directory)
    paths = [path for path, value in rows[0].after.items() if isinstance(value, int | float)]
    figure = Figure(figsize=(8, 2.4 * (1 + len(paths))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1 + len(paths), sharex=True, squeeze=False)[:, 0]
    _returns(axes[0], rows)
    for axis, path in zip(axes[1:], paths, strict=True):
        _values(axis, rows, path)
    axes[-1].set_xlabel("steps of each member")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(directory / PLOT_FILE, dpi=120)
    return f"  {directory / PLOT_FILE}"


def _returns(axis: Any, rows: list[HistoryRow]) -> None:
    """Plot one curve per member, interrupted where it copied another; a thin line leads to the copied member."""
    axis.set_ylabel("return")
    for member, colour in _members(rows):
        points: list[tuple[float, float]] = []
        for row in rows:
            if row.member == member and row.event == "ready" and row.score is not None:
                points.append((row.steps, row.score))
            elif row.member == member and row.event != "ready":
                axis.plot(*zip(*points, strict=True), ".-", color=colour, lw=1.2, ms=3) if points else None
                points = []
                parent = _latest(rows, row)
                if parent is not None and parent.score is not None:
                    points = [(row.steps, parent.score)]
                    if row.score is not None:
                        axis.plot([row.steps] * 2, [row.score, parent.score], ":", color=colour, lw=0.8)
        if points:
            axis.plot(*zip(*points, strict=True), ".-", color=colour, lw=1.2, ms=3)


def _values(axis: Any, rows: list[HistoryRow], path: str) -> None:
    """Plot a hyper-parameter of every member as a step function; it changes only when the member copies."""
    axis.set_ylabel(path.rpartition(".")[2].replace("_", " "))
    values = [row.after[path] for row in rows]
    if min(values) > 0 and max(values) / min(values) > 50:
        axis.set_yscale("log")
    for member, colour in _members(rows):
        mine = [row for row in rows if row.member == member]
        axis.step([row.steps for row in mine], [row.after[path] for row in mine], where="post", color=colour, lw=1.2)


def _latest(rows: list[HistoryRow], copy: HistoryRow) -> HistoryRow | None:
    """The last `ready` row of the copied member before the copy."""
    before = (row for row in reversed(rows[: rows.index(copy)]) if row.member == copy.parent and row.event == "ready")
    return next(before, None)


def _members(rows: list[HistoryRow]) -> list[tuple[int, str]]:
    return list(zip(sorted({row.member for row in rows}), cycle(_COLOURS), strict=False))


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
