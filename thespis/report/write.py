"""Writes the files of a comparison: results.json, report.md, report.html and the pictures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from thespis.core.system.commit import commit_file, to_json
from thespis.report import plots
from thespis.report.html import html_report
from thespis.report.results import Comparison
from thespis.report.text import CAPTIONS, markdown


def write_report(comparison: Comparison, out: Path) -> None:
    """Write all files to `out`, each atomically."""
    figures = plots.draw_plots(comparison)
    for name in CAPTIONS:
        if name in figures:
            commit_file(out / f"{name}.png", plots.png(figures[name]))
        else:
            (out / f"{name}.png").unlink(missing_ok=True)  # left over from an earlier report
    svgs = {name: plots.svg(figure, CAPTIONS[name]) for name, figure in figures.items()}
    commit_file(out / "results.json", to_json(asdict(comparison)))
    commit_file(out / "report.md", markdown(comparison, list(figures)).encode())
    commit_file(out / "report.html", html_report(comparison, svgs).encode())
