"""Writes a comparison down: results.json, report.md, report.html and the pictures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from thespis.core.system.commit import commit_file, to_json
from thespis.report import plots
from thespis.report.collect import Comparison
from thespis.report.html import page
from thespis.report.text import CAPTIONS, markdown


def write(comparison: Comparison, out: Path) -> None:
    """Everything into `out`, each file whole or not at all."""
    figures = plots.draw(comparison)
    for name in CAPTIONS:
        if name in figures:
            commit_file(out / f"{name}.png", plots.png(figures[name]))
        else:
            (out / f"{name}.png").unlink(missing_ok=True)  # an earlier report had something to show here
    svgs = {name: plots.svg(figure, CAPTIONS[name]) for name, figure in figures.items()}
    commit_file(out / "results.json", to_json(asdict(comparison)))
    commit_file(out / "report.md", markdown(comparison, list(figures)).encode())
    commit_file(out / "report.html", page(comparison, svgs).encode())
