"""The plots of a report. Each is drawn once and saved as PNG and as SVG; the SVG takes the text colour of its page."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.errors import ThespisError
from thespis.report.results import Comparison, Entry
from thespis.report.statistics import Band, Estimate
from thespis.runs.terminal.formatting import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#3987d2", "#e67e33", "#33a271", "#9a6fd0", "#d65a7f", "#1fa3ad", "#b98d1d", "#8a8f98", "#7fa32b", "#c061b8",
)  # fmt: skip
STEPS = "environment steps"
RETURN = "training return, mean of 100 episodes"
_INK = "#4a5361"
_HALF, _WHOLE = (5.6, 3.9), 9.6
"""Inches: the size of plots side by side on a page, and the width of the other plots."""
_WORK = {
    "env_step": "#3987d2", "inference": "#7fb3e6", "learn": "#e67e33", "apply": "#f0b07c",
    "insert": "#33a271", "sample": "#86cbab",
}  # fmt: skip
_KINDS = {"experience": "#33a271", "weights": "#3987d2", "gradients": "#e67e33", "inference": "#9a6fd0"}
_OTHER = "#9a6fd0"
STYLE = {
    "font.size": 10.0, "font.family": "DejaVu Sans", "svg.fonttype": "none", "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "text.color": _INK,
    "xtick.color": _INK, "ytick.color": _INK, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "legend.frameon": False, "legend.fontsize": 9.0, "axes.linewidth": 0.8,
    "svg.hashsalt": "thespis",
}  # fmt: skip


def require_matplotlib() -> None:
    """Raise an error if matplotlib is missing, before hours of runs instead of after them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ThespisError("pictures need matplotlib; install it with: pip install 'thespis[plots]'")


def draw_plots(comparison: Comparison) -> dict[str, Figure]:
    """Draw every plot that has data; return them by file name."""
    from matplotlib import rc_context

    drawings: dict[str, Callable[[Comparison], Figure | None]] = {
        "return-steps": lambda results: plot_returns(results, "steps"),
        "return-seconds": lambda results: plot_returns(results, "seconds"),
        "speed": plot_speed,
        "lag": plot_lags,
        "roles": plot_roles,
        "traffic": plot_traffic,
        "processes": plot_processes,
    }
    with rc_context(STYLE):  # type: ignore[arg-type]
        figures = {name: drawing(comparison) for name, drawing in drawings.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def png(figure: Figure) -> bytes:
    """Render a figure as PNG on white."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure.savefig(file, format="png", dpi=144, facecolor="white")
    return file.getvalue()


def svg(figure: Figure, label: str) -> str:
    """Render a figure as SVG for an HTML page: transparent, in the page's text colour, without external references."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context(STYLE):  # type: ignore[arg-type]
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    # Ids must be unique among all figures of a page.
    prefix = re.sub(r"\W", "", label)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)  # the page sets the size
    return f'{head} role="img" aria-label="{label}">{rest}'.replace(_INK, "currentColor")


def colours(entries: Sequence[Entry]) -> dict[str, str]:
    """Assign a colour to each architecture."""
    return dict(zip((entry.name for entry in entries), cycle(COLOURS), strict=False))


# -- curves ---------------------------------------------------------------------------------------


def plot_returns(comparison: Comparison, x: str) -> Figure | None:
    """Plot the return of training episodes over steps or seconds."""
    curves = {entry.name: entry.curves[x] for entry in comparison.entries if entry.curves[x].x}
    if not curves:
        return None
    virtual = "virtual " if comparison.on == "simulation" else ""
    label = STEPS if x == "steps" else f"{virtual}seconds since the first step"
    return plot_bands(curves, colours(comparison.entries), label, RETURN, comparison.threshold)


def plot_bands(
    curves: dict[str, Band], colour: dict[str, str], label: str, what: str, threshold: float | None = None
) -> Figure:
    """Plot curves with their intervals. The step axis is logarithmic if it spans more than a factor of twenty."""
    figure, (axis,) = _canvas(*_HALF)
    for name, curve in curves.items():
        axis.fill_between(curve.x, curve.low, curve.high, color=colour[name], alpha=0.18, lw=0)
        axis.plot(curve.x, curve.middle, color=colour[name], lw=1.8, label=name, solid_capstyle="round")
        axis.plot(curve.x[-1], curve.middle[-1], "o", color=colour[name], ms=4)
    if threshold is not None:
        axis.axhline(threshold, color=_INK, lw=0.9, ls=(0, (4, 3)), alpha=0.7, zorder=0)
    ends = [curve.x[-1] for curve in curves.values()]
    if label == STEPS and max(ends) > 20 * min(curve.x[0] for curve in curves.values()) > 0:
        axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: _short(value))
    if axis.get_xscale() == "log":
        axis.xaxis.set_minor_formatter(lambda value, _: "")
    axis.set(xlabel=label, ylabel=what)
    _grid(axis, "both")
    _legend(figure, axis)
    return figure


def plot_lags(comparison: Comparison) -> Figure | None:
    """Plot the distribution of lag: the share of steps at or below each lag."""
    entries = [entry for entry in comparison.entries if entry.lag["counts"]]
    if not entries:
        return None
    figure, (axis,) = _canvas(*_HALF)
    most = max(int(lag) for entry in entries for lag in entry.lag["counts"])
    for entry in entries:
        at = np.array([int(lag) for lag in entry.lag["counts"]], float)
        steps = np.array(list(entry.lag["counts"].values()), float)
        x = np.concatenate([[0.0], at, [most * 1.05 + 1]])
        y = np.concatenate([[0.0], np.cumsum(steps) / steps.sum(), [1.0]])
        axis.step(x, y, where="post", color=colours(comparison.entries)[entry.name], lw=1.8, label=entry.name)
    axis.set_xscale("symlog", base=2, linthresh=1)
    axis.set_xticks([0, *(2**i for i in range(int(most + 1).bit_length()))][:: 1 if most < 512 else 2])
    axis.set(xlim=(0, most * 1.05 + 1), ylim=(0, 1.03), xlabel="lag, updates", ylabel="share of steps at most this old")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _grid(axis, "both")
    _legend(figure, axis)
    return figure


# -- bars -----------------------------------------------------------------------------------------


def plot_speed(comparison: Comparison) -> Figure | None:
    """Plot environment steps and updates per second."""
    entries = [entry for entry in comparison.entries if entry.steps_per_second.values]
    if not entries:
        return None
    figure, axes = _canvas(_HALF[0], max(_HALF[1], 0.9 + 0.42 * len(entries)), columns=2)
    for axis, title in zip(axes, ("environment steps / s", "updates / s"), strict=True):
        for y, entry in enumerate(entries):
            value = entry.steps_per_second if axis is axes[0] else entry.updates_per_second
            _bar(axis, y, value, colours(comparison.entries)[entry.name])
        axis.set_title(title)
        _rows(axis, [entry.name for entry in entries] if axis is axes[0] else [""] * len(entries))
    return figure


def _bar(axis: Axes, y: int, value: Estimate, colour: str) -> None:
    """Draw a bar with a dot per run, and the value to the right of both."""
    if value.middle is None:
        return
    axis.barh(y, value.middle, height=0.62, color=colour, alpha=0.85)
    axis.plot(value.values, [y] * len(value.values), "o", ms=3.2, color=_INK, alpha=0.75)
    end = max([value.middle, *value.values])
    axis.annotate(format_number(value.middle), (end, y), (6, 0), textcoords="offset points", va="center", fontsize=9)


def plot_roles(comparison: Comparison) -> Figure | None:
    """Plot how each role spends its time: work by kind, waiting, and the remainder."""
    rows = [
        (entry.name, role, share)
        for entry in comparison.entries
        for role, share in entry.training_roles.items()
        if share["busy"] or share["waits"]
    ]
    if not rows:
        return None
    kinds = list(dict.fromkeys(kind for _, _, share in rows for kind in share["busy"]))
    kinds.sort(key=lambda kind: list(_WORK).index(kind) if kind in _WORK else len(_WORK))
    figure, (axis,) = _canvas(_WHOLE, 1.3 + 0.3 * len(rows))
    for y, (_, _, share) in enumerate(rows):
        parts = [(kind, share["busy"].get(kind, 0.0), _WORK.get(kind, _OTHER), 0.9) for kind in kinds]
        _stack(axis, y, [*parts, ("waiting", share["wait_share"], _INK, 0.22)])
    many = {(name, role): share["count"] for name, role, share in rows}
    _rows(axis, [f"{name}  {role}{f' ×{many[name, role]}' if many[name, role] > 1 else ''}" for name, role, _ in rows])
    names = [kind if kind in _WORK else "other work" for kind in kinds]
    chips = {name: (_WORK.get(name, _OTHER), 0.9) for name in names}
    _chips(figure, {**{name.replace("_", " "): chip for name, chip in chips.items()}, "waiting": (_INK, 0.22)})
    axis.set_xlim(0, 1.0)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _grid(axis, "x")
    return figure


def plot_traffic(comparison: Comparison) -> Figure | None:
    """Plot bytes per environment step by kind of edge."""
    entries = [entry for entry in comparison.entries if any(edge["bytes_per_step"] for edge in entry.edges.values())]
    if not entries:
        return None
    figure, (axis,) = _canvas(_WHOLE, 1.25 + 0.42 * len(entries))
    for y, entry in enumerate(entries):
        amounts = dict.fromkeys(_KINDS, 0.0)
        for edge in entry.edges.values():
            amounts[edge["kind"]] = amounts.get(edge["kind"], 0.0) + edge["bytes_per_step"]
        end = _stack(axis, y, [(kind, amount, _KINDS.get(kind, _OTHER), 0.9) for kind, amount in amounts.items()])
        axis.annotate(format_number(round(end)), (end, y), (6, 0), textcoords="offset points", va="center", fontsize=9)
    _rows(axis, [entry.name for entry in entries])
    axis.set_xlabel("bytes per environment step")
    used = {edge["kind"] for entry in entries for edge in entry.edges.values() if edge["bytes_per_step"]}
    _chips(figure, {kind: (_KINDS.get(kind, _OTHER), 0.9) for kind in _KINDS if kind in used})
    return figure


def plot_processes(comparison: Comparison) -> Figure | None:
    """Plot CPU seconds and memory of each architecture by kind of process."""
    entries = [entry for entry in comparison.entries if entry.cores is not None]
    if not entries:
        return None
    kinds = list(dict.fromkeys(kind for entry in entries for kind in entry.processes))
    colour = dict(zip(kinds, cycle(COLOURS), strict=False))
    figure, axes = _canvas(_WHOLE, 1.25 + 0.42 * len(entries), columns=2)
    for axis, title in zip(axes, ("CPU seconds per run", "peak memory, MB"), strict=True):
        for y, entry in enumerate(entries):
            parts = []
            for kind, process in entry.processes.items():
                amount = process["cpu_seconds"] if axis is axes[0] else process["count"] * (process["rss_mb"] or 0.0)
                parts.append((kind, amount or 0.0, colour[kind], 0.88))
            end = _stack(axis, y, parts)
            axis.annotate(
                format_number(round(end)), (end, y), (6, 0), textcoords="offset points", va="center", fontsize=9
            )
        axis.set_title(title)
        _rows(axis, [entry.name for entry in entries] if axis is axes[0] else [""] * len(entries))
    _chips(figure, {kind: (colour[kind], 0.88) for kind in kinds})
    return figure


# -- pieces ---------------------------------------------------------------------------------------


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [figure.add_subplot(1, columns, i + 1) for i in range(columns)]


def _stack(axis: Axes, y: int, parts: list[tuple[str, float, str, float]]) -> float:
    """Draw parts (name, width, colour, opacity) side by side; return the right end."""
    left = 0.0
    for _, width, colour, alpha in parts:
        if width:
            axis.barh(y, width, left=left, height=0.66, color=colour, alpha=alpha, lw=0)
            left += width
    return left


def _rows(axis: Axes, labels: list[str]) -> None:
    """Label the bars, the first on top, and hide the vertical axis line."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.margins(x=0.14)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.xaxis.set_major_formatter(lambda value, _: _short(value))
    axis.locator_params(axis="x", nbins=5)
    _grid(axis, "x")


def _grid(axis: Axes, which: Any) -> None:
    axis.grid(True, axis=which, color=_INK, alpha=0.14, lw=0.8)
    axis.set_axisbelow(True)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, _ = axis.get_legend_handles_labels()
    figure.legend(
        handles=handles, loc="outside upper left", ncols=min(6, len(handles)), handlelength=1.2, columnspacing=1.2
    )


def _chips(figure: Figure, chips: dict[str, tuple[str, float]]) -> None:
    """Draw a legend of colours above the bars."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, alpha=alpha, lw=0, label=name) for name, (colour, alpha) in chips.items()]
    columns = min(7, len(handles))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, handlelength=0.9, handleheight=0.9, columnspacing=1.2
    )


def _short(value: float) -> str:
    """Format a number of an axis: 20k instead of 20000."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"
