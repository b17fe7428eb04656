"""The report of a comparison as a terminal table and as Markdown (`report.md`)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from thespis.report.results import Comparison, Entry
from thespis.report.statistics import Estimate, quantile
from thespis.runs.terminal.formatting import format_number

CAPTIONS = {
    "return-steps": "Return over environment steps",
    "return-seconds": "Return over seconds",
    "speed": "Speed; each dot is a run",
    "lag": "Policy lag",
    "roles": "How each role spent its time; the blank rest is messages and waiting for a core",
    "traffic": "Traffic between roles",
    "processes": "CPU time and memory",
}


def format_interval(value: Estimate) -> str:
    """Format an estimate as `412 (390 to 436)`; a single run has no interval."""
    if value.middle is None or len(value.values) < 2 or format_number(value.low) == format_number(value.high):
        return format_number(value.middle)
    return f"{format_number(value.middle)} ({format_number(value.low)} to {format_number(value.high)})"


def overview(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the column heads and one row per architecture of the main table."""
    goal = "" if comparison.threshold is None else f" to {format_number(comparison.threshold)}"
    seconds = "virtual s" if comparison.on == "simulation" else "s"
    heads = ["architecture", "return", "greedy", "steps/s", "updates/s"]
    heads += [f"{seconds}{goal}", f"steps{goal}", "reached"] if goal else []
    heads += ["lag, 50% / 95%", "samples/insert", "bytes/step"]
    return heads, [_row(entry, bool(goal)) for entry in comparison.entries]


def _row(entry: Entry, goal: bool) -> list[str]:
    lag = [format_number(quantile(entry.lag["counts"], share)) for share in (0.5, 0.95)]
    traffic = sum(edge["bytes_per_step"] for edge in entry.edges.values())
    row = [entry.name, format_interval(entry.returns), format_number(entry.greedy_returns.middle)]
    row += [format_number(entry.steps_per_second.middle), format_number(entry.updates_per_second.middle)]
    if goal:
        reached = f"{len(entry.seconds_to_threshold.values)} of {len(entry.runs) + len(entry.failed)}"
        row += [
            format_number(entry.seconds_to_threshold.middle),
            format_number(entry.steps_to_threshold.middle),
            reached,
        ]
    lags = " / ".join(lag) if entry.lag["counts"] else "–"
    return [
        *row,
        lags,
        format_number(entry.samples_per_insert.middle),
        format_number(round(traffic) if entry.runs else None),
    ]


def edge_rows(entry: Entry) -> list[list[str]]:
    """Return edge, kind and bytes per step of each edge."""
    return [[name, edge["kind"], format_number(edge["bytes_per_step"])] for name, edge in entry.edges.items()]


def role_rows(entry: Entry) -> list[list[str]]:
    """Return role, work share, wait share and longest wait of each role."""
    rows = []
    for role, share in entry.roles.items():
        waits = share["waits"]
        most = max(waits, key=lambda edge: waits[edge]).partition(".")[2] if waits else ""
        work = min(1.0, sum(share["busy"].values()))
        rows.append([f"{role} ×{format_number(share['count'])}", f"{work:.0%}", f"{share['wait_share']:.0%}", most])
    return rows


def process_rows(entry: Entry) -> list[list[str]]:
    """Return process, roles, total CPU seconds and peak memory per process of each kind of process."""
    return [
        [
            f"{name} ×{format_number(each['count'])}",
            ", ".join(each["roles"]),
            format_number(each["cpu_seconds"]),
            format_number(each["rss_mb"]),
        ]
        for name, each in entry.processes.items()
    ]


def method_notes(comparison: Comparison) -> list[str]:
    """Return paragraphs on how the results were measured."""
    few = " Intervals of fewer than five seeds are unreliable." if comparison.seeds < 5 else ""
    virtual = " and are virtual, also in speeds" if comparison.on == "simulation" else ""
    return [
        f"Every architecture ran {comparison.seeds} time{'s' if comparison.seeds > 1 else ''} for {comparison.budget}, "
        "one run after the other on the same machine, with its own preset for the environment but the same hidden "
        "layers. A run that reaches the step limit of its preset ends earlier.",
        "Curves and values are interquartile means over seeds; bands and intervals are 95% of 2,000 bootstrap "
        f"samples of the seeds.{few} Return is the mean of the last 100 training episodes (or of all, if there are "
        "fewer), with exploration; greedy is the mean of the evaluation episodes after training.",
        f"Seconds count from the first environment step{virtual}. Speed and waiting are measured from the first "
        "update to the last. CPU seconds and memory are of whole processes and include start-up.",
    ]


def markdown(comparison: Comparison, pictures: Sequence[str]) -> str:
    """Return the report as Markdown. `pictures`: names of PNG files in the same directory."""
    parts = [f"# {_title(comparison)}", f"{_subtitle(comparison)}.", _table(*overview(comparison))]
    failures = [
        f"- {entry.name}, seed {each['seed']}: {each['error']}" for entry in comparison.entries for each in entry.failed
    ]
    if failures:
        parts += ["## Failed runs", "\n".join(failures)]
    parts += [f"![{CAPTIONS[name]}]({name}.png)" for name in pictures]
    parts.append("## Bottlenecks")
    for entry in comparison.entries:
        parts += [f"### {entry.name}", f"{_setting(entry)}.", entry.limit]
        if entry.roles:
            parts.append(_table(["role", "works", "waits", "mostly for"], role_rows(entry)))
            parts.append(_table(["process", "roles", "CPU s", "peak MB each"], process_rows(entry)))
            parts.append(_table(["edge", "kind", "bytes per step"], edge_rows(entry)))
    parts += ["## Method", *method_notes(comparison), f"{machine_line(comparison)}."]
    return "\n\n".join(parts) + "\n"


def _title(comparison: Comparison) -> str:
    return f"{', '.join(entry.name for entry in comparison.entries)} on {comparison.env}"


def _subtitle(comparison: Comparison) -> str:
    return f"{comparison.budget}, {comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}, on {comparison.on}"


def _setting(entry: Entry) -> str:
    actors = f"{entry.actors} actor{'s' if entry.actors > 1 else ''}"
    return f"Network {entry.network}; {actors} × {entry.envs_per_actor} environments"


def machine_line(comparison: Comparison) -> str:
    """Describe the machine and the software versions in one line."""
    machine = comparison.machine
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "gymnasium"))
    return f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['memory']}; {versions}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def terminal_table(comparison: Comparison) -> Table:
    """Return the main table for a terminal, without the intervals."""
    heads, rows = overview(comparison)
    for entry, row in zip(comparison.entries, rows, strict=True):
        row[heads.index("return")] = format_number(entry.returns.middle)
    title = f"{comparison.env}, {_subtitle(comparison)}"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None)
    for head in heads:
        table.add_column(head, justify="left" if head == "architecture" else "right", overflow="fold")
    for entry, row in zip(comparison.entries, rows, strict=True):
        table.add_row(*row, style="red" if entry.failed and not entry.runs else None)
    return table
