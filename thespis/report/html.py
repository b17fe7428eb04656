"""The report as one self-contained HTML file: style and pictures are inside, and it loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from thespis.report.plots import colours
from thespis.report.results import Comparison, Entry
from thespis.report.text import CAPTIONS, edge_rows, machine_line, method_notes, overview, process_rows, role_rows

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1f2733; --soft: #5a6474;
  --line: #e1e5eb; --best: #e4f3ea; --bad: #b3261e; --bad-ground: #fdecea; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --card: #1a2028; --ink: #e4e8ee; --soft: #a3adba;
  --line: #2d3540; --best: #1d3a2b; --bad: #ff8a80; --bad-ground: #3a1d1d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.55;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 44px 0 14px; }
h3 { font-size: 16px; margin: 0 0 6px; display: flex; align-items: center; gap: 9px; }
p { margin: 0 0 12px; max-width: 85ch; }
.soft { color: var(--soft); }
.dot { width: 11px; height: 11px; border-radius: 50%; display: inline-block; flex: none; margin-right: 8px; }
h3 .dot { margin: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px;
  margin: 0 0 16px; }
.wide { overflow-x: auto; padding: 6px 8px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); gap: 16px; }
figure { margin: 0; }
figcaption { font-weight: 600; margin: 0 0 10px; }
svg { display: block; width: 100%; height: auto; color: var(--soft); }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 500; color: var(--soft); font-size: 13px; padding: 8px 9px;
  vertical-align: bottom; }
td { text-align: right; padding: 8px 9px; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
td.best { background: var(--best); border-radius: 4px; }
.small td, .small th { font-size: 13px; padding: 4px 8px; }
.small td:first-child { font-weight: 400; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 8px 28px; overflow-x: auto; }
details { margin-top: 6px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.failed { background: var(--bad-ground); border-color: var(--bad); }
.failed b { color: var(--bad); }
footer { margin-top: 40px; font-size: 13px; color: var(--soft); }
"""
_PAIRS = (("return-steps", "return-seconds"), ("speed", "lag"), ("roles",), ("traffic",), ("processes",))
_MORE_IS_BETTER = ("return", "greedy", "steps/s", "updates/s")


def html_report(comparison: Comparison, pictures: Mapping[str, str]) -> str:
    """Return the report. `pictures`: SVG by name."""
    names = ", ".join(entry.name for entry in comparison.entries)
    seeds = f"{comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"
    goal = "" if comparison.threshold is None else f" · solved at {comparison.threshold:g}"
    about = f"{names} · {comparison.budget} each · {seeds} · on {comparison.on}{goal}"
    notes = "".join(f"<p>{escape(line)}</p>" for line in method_notes(comparison))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(names)} on {escape(comparison.env)}</title><style>{_STYLE}</style></head><body><main>",
            f"<h1>{escape(comparison.env)}</h1>",
            f'<p class="soft">{escape(about)}</p>',
            _failures(comparison),
            f'<div class="card wide">{_overview(comparison)}</div>',
            *_pictures(pictures),
            "<h2>Bottlenecks</h2>",
            *(_section(entry, colours(comparison.entries)[entry.name]) for entry in comparison.entries),
            f"<h2>Method</h2>{notes}",
            f"<footer>{escape(machine_line(comparison))}</footer></main></body></html>",
        ]
    )


def _overview(comparison: Comparison) -> str:
    heads, rows = overview(comparison)
    best = _best(comparison, heads)
    dots = colours(comparison.entries)
    body = []
    for y, row in enumerate(rows):
        name = f'<td><span class="dot" style="background:{dots[row[0]]}"></span>{escape(row[0])}</td>'
        cells = (
            f"<td{' class=best' if best.get(x) == y else ''}>{escape(cell)}</td>" for x, cell in enumerate(row[1:], 1)
        )
        body.append(f"<tr>{name}{''.join(cells)}</tr>")
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{''.join(body)}</table>"


def _best(comparison: Comparison, heads: Sequence[str]) -> dict[int, int]:
    """Return the best row of each column that ranks the architectures."""
    best = {}
    for x, head in enumerate(heads):
        values = {y: value for y, entry in enumerate(comparison.entries) if (value := _worth(entry, head)) is not None}
        if len(values) > 1 and len(set(values.values())) > 1:
            best[x] = max(values, key=lambda y: values[y])
    return best


def _worth(entry: Entry, head: str) -> float | None:
    """Return the value of a column for this architecture, such that more is better, or None."""
    if head in _MORE_IS_BETTER:
        of = {"return": entry.returns, "greedy": entry.greedy_returns, "steps/s": entry.steps_per_second}
        return of.get(head, entry.updates_per_second).middle
    if " to " in head:
        took = (entry.steps_to_threshold if head.startswith("steps") else entry.seconds_to_threshold).middle
        return None if took is None else -took
    return None


def _failures(comparison: Comparison) -> str:
    lines = [
        f"<p><b>{escape(entry.name)}, seed {each['seed']}, failed.</b> {escape(each['error'])}</p>"
        for entry in comparison.entries
        for each in entry.failed
    ]
    return f'<div class="card failed">{"".join(lines)}</div>' if lines else ""


def _pictures(pictures: Mapping[str, str]) -> list[str]:
    cards = []
    for names in _PAIRS:
        shown = [
            f'<figure class="card"><figcaption>{CAPTIONS[name]}</figcaption>{pictures[name]}</figure>'
            for name in names
            if name in pictures
        ]
        cards.append(f'<div class="pair">{"".join(shown)}</div>' if len(shown) > 1 else "".join(shown))
    return cards


def _section(entry: Entry, colour: str) -> str:
    tables = [
        _small(["role", "works", "waits", "mostly for"], role_rows(entry)),
        _small(["process", "roles", "CPU s", "peak MB each"], process_rows(entry)),
        _small(["edge", "kind", "bytes per step"], edge_rows(entry)),
    ]
    more = (
        f'<details><summary>roles, processes and edges</summary><div class="tables">{"".join(tables)}</div></details>'
    )
    return (
        f'<section class="card"><h3><span class="dot" style="background:{colour}"></span>{escape(entry.name)}</h3>'
        f'<p class="soft">network {escape(entry.network)} · {entry.actors} actor{"s" if entry.actors > 1 else ""} × '
        f"{entry.envs_per_actor} environments</p><p>{escape(entry.limit)}</p>{more if entry.roles else ''}</section>"
    )


def _small(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="small"><tr>{head}</tr>{body}</table>'
