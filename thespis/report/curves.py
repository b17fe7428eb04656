"""Plots the learning curves of runs in one picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError
from thespis.report import plots
from thespis.report.collect import Run
from thespis.report.statistics import Band, band, smoothed
from thespis.runs.directory import RunDirectory
from thespis.training.registry import load_config, pair_name

_OWN = ("seed", "run_dir")
"""Settings that may differ between the runs of one curve."""


def grouped(paths: Sequence[Path], apart: bool) -> dict[str, list[Run]]:
    """Group runs by curve, and name the curves. The runs of a curve differ only in their seed.

    The names of curves of one architecture include the settings that differ. `apart`: one curve per run.
    """
    configs = [_config(path) for path in paths]
    if apart:
        return {path.name or str(path): [Run(path)] for path in paths}
    groups: dict[str, list[int]] = {}
    for i, config in enumerate(configs):
        key = str(sorted((name, value) for name, value in config.items() if name not in _OWN))
        groups.setdefault(key, []).append(i)
    firsts = [configs[members[0]] for members in groups.values()]
    names = _names(firsts)
    return {name: [Run(paths[i]) for i in members] for name, members in zip(names, groups.values(), strict=True)}


def _config(path: Path) -> dict[str, Any]:
    """Read the settings of a run, with its short name as architecture if it has one."""
    architecture, settings = load_config(RunDirectory.open(path).config)
    return {"architecture": pair_name(architecture, settings.get("algorithm")), **settings}


def _names(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Name each curve by its architecture and the settings that differ within it."""
    names = []
    for config in configs:
        alike = [other for other in configs if other["architecture"] == config["architecture"]]
        differ = [
            key for key in config if key not in _OWN and any(str(other.get(key)) != str(config[key]) for other in alike)
        ]
        label = ", ".join(f"{key} {config[key]}" for key in differ)
        name = Path(str(config["architecture"])).stem
        names.append(f"{name}: {label}" if label else name)
    return names


def draw_curves(groups: dict[str, list[Run]], x: str, metric: str, smooth: int, form: str) -> bytes:
    """Plot the curves as `png`, `svg` or `pdf`."""
    plots.require_matplotlib()
    from matplotlib import rc_context

    curves: dict[str, Band] = {}
    for name, runs in groups.items():
        lines = [(at, smoothed(y, smooth)) for at, y in (run.curve(x, metric) for run in runs) if len(at)]
        if not lines:
            have = sorted({key for run in runs for row in run.rows for key in row if "/" in key})
            raise ThespisError(f"{runs[0].path} has no {metric}; it has {', '.join(have) or 'no metrics yet'}")
        curves[name] = band(lines, even=x != "steps")
    colour = dict(zip(curves, cycle(plots.COLOURS), strict=False))
    label = plots.STEPS if x == "steps" else _seconds(groups)
    file = io.BytesIO()
    with rc_context(plots.STYLE):  # type: ignore[arg-type]
        figure = plots.plot_bands(curves, colour, label, plots.RETURN if metric == "rollout/ep_rew_mean" else metric)
        figure.savefig(file, format=form, dpi=144, facecolor="white")
    return file.getvalue()


def _seconds(groups: dict[str, list[Run]]) -> str:
    """Return the label of the time axis; the seconds of a simulated run are virtual."""
    virtual = [name for name, runs in groups.items() if all(run.virtual for run in runs)]
    if len(virtual) == len(groups):
        return "virtual seconds since the first step"
    return "seconds since the first step" + (f" (virtual: {', '.join(virtual)})" if virtual else "")
