"""A comparison as tables: on the terminal, and as `report.md`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from thespis.report.collect import Comparison, Entry
from thespis.report.statistics import Estimate, quantile
from thespis.runs.figures import number

CAPTIONS = {
    "return-steps": "Return against environment steps",
    "return-seconds": "Return against seconds",
    "speed": "Speed; a dot is a run",
    "lag": "Lag of what was learned from",
    "roles": "How each role spent its time; what is blank went into messages and into waiting for a core",
    "traffic": "Traffic between roles",
    "processes": "CPU time and memory",
}


def interval(value: Estimate) -> str:
    """`412 (390 to 436)`; a single run has no interval."""
    if value.middle is None or len(value.values) < 2 or number(value.low) == number(value.high):
        return number(value.middle)
    return f"{number(value.middle)} ({number(value.low)} to {number(value.high)})"


def overview(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and a row per architecture: what most people want to know."""
    goal = "" if comparison.threshold is None else f" to {number(comparison.threshold)}"
    seconds = "virtual s" if comparison.on == "simulation" else "s"
    heads = ["architecture", "return", "greedy", "steps/s", "updates/s"]
    heads += [f"{seconds}{goal}", f"steps{goal}", "reached"] if goal else []
    heads += ["lag, 50% / 95%", "samples/insert", "bytes/step"]
    return heads, [_row(entry, bool(goal)) for entry in comparison.entries]


def _row(entry: Entry, goal: bool) -> list[str]:
    lag = [number(quantile(entry.lag["counts"], share)) for share in (0.5, 0.95)]
    traffic = sum(edge["bytes_per_step"] for edge in entry.edges.values())
    row = [entry.name, interval(entry.returns), number(entry.greedy_returns.middle)]
    row += [number(entry.steps_per_second.middle), number(entry.updates_per_second.middle)]
    if goal:
        reached = f"{len(entry.seconds_to_threshold.values)} of {len(entry.runs) + len(entry.failed)}"
        row += [number(entry.seconds_to_threshold.middle), number(entry.steps_to_threshold.middle), reached]
    lags = " / ".join(lag) if entry.lag["counts"] else "–"
    return [*row, lags, number(entry.samples_per_insert.middle), number(round(traffic) if entry.runs else None)]


def edge_rows(entry: Entry) -> list[list[str]]:
    return [[name, edge["kind"], number(edge["bytes_per_step"])] for name, edge in entry.edges.items()]


def role_rows(entry: Entry) -> list[list[str]]:
    """Role, at work, waiting, and what it waited for most."""
    rows = []
    for role, share in entry.roles.items():
        waits = share["waits"]
        most = max(waits, key=lambda edge: waits[edge]).partition(".")[2] if waits else ""
        work = min(1.0, sum(share["busy"].values()))
        rows.append([f"{role} ×{number(share['count'])}", f"{work:.0%}", f"{share['wait_share']:.0%}", most])
    return rows


def process_rows(entry: Entry) -> list[list[str]]:
    """Process, the roles in it, CPU seconds of all of its kind, peak memory of one."""
    return [
        [
            f"{name} ×{number(each['count'])}",
            ", ".join(each["roles"]),
            number(each["cpu_seconds"]),
            number(each["rss_mb"]),
        ]
        for name, each in entry.processes.items()
    ]


def method(comparison: Comparison) -> list[str]:
    """How to read it, and what it is worth."""
    few = " With so few seeds they say little." if comparison.seeds < 5 else ""
    virtual = " and are virtual, in speeds as well" if comparison.on == "simulation" else ""
    return [
        f"Every architecture ran {comparison.seeds} time{'s' if comparison.seeds > 1 else ''} for {comparison.budget}, "
        "one run after the other on the same machine, with its own preset for the environment but the same hidden "
        "layers. A run that has taken the steps of its preset ends sooner.",
        "Curves and figures are interquartile means over seeds; bands and intervals are 95% of 2,000 bootstrap "
        f"samples of the seeds.{few} Return is the mean of the last 100 training episodes (of all, if there are "
        "fewer), exploration included; greedy is the mean of the episodes after training.",
        f"Seconds count from the first environment step{virtual}. Speed and waiting are measured from the first "
        "update to the last. CPU seconds and memory are those of whole processes, start-up included.",
    ]


def markdown(comparison: Comparison, pictures: Sequence[str]) -> str:
    """The report as Markdown; pictures are files beside it."""
    parts = [f"# {_title(comparison)}", f"{_subtitle(comparison)}.", _table(*overview(comparison))]
    failures = [
        f"- {entry.name}, seed {each['seed']}: {each['error']}" for entry in comparison.entries for each in entry.failed
    ]
    if failures:
        parts += ["## Failed runs", "\n".join(failures)]
    parts += [f"![{CAPTIONS[name]}]({name}.png)" for name in pictures]
    parts.append("## What limited each")
    for entry in comparison.entries:
        parts += [f"### {entry.name}", f"{_setting(entry)}.", entry.limit]
        if entry.roles:
            parts.append(_table(["role", "works", "waits", "mostly for"], role_rows(entry)))
            parts.append(_table(["process", "roles", "CPU s", "peak MB each"], process_rows(entry)))
            parts.append(_table(["edge", "kind", "bytes per step"], edge_rows(entry)))
    parts += ["## Method", *method(comparison), f"{machine_line(comparison)}."]
    return "\n\n".join(parts) + "\n"


def _title(comparison: Comparison) -> str:
    return f"{', '.join(entry.name for entry in comparison.entries)} on {comparison.env}"


def _subtitle(comparison: Comparison) -> str:
    return f"{comparison.budget}, {comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}, on {comparison.on}"


def _setting(entry: Entry) -> str:
    actors = f"{entry.actors} actor{'s' if entry.actors > 1 else ''}"
    return f"Network {entry.network}; {actors} × {entry.envs_per_actor} environments"


def machine_line(comparison: Comparison) -> str:
    told = comparison.machine
    versions = ", ".join(f"{name} {told[name]}" for name in ("python", "torch", "gymnasium"))
    return f"Measured on {told['cpu']}, {told['cores']} cores, {told['memory']}; {versions}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def terminal(comparison: Comparison) -> Table:
    """The overview for a terminal, without the intervals."""
    heads, rows = overview(comparison)
    for entry, row in zip(comparison.entries, rows, strict=True):
        row[heads.index("return")] = number(entry.returns.middle)
    title = f"{comparison.env}, {_subtitle(comparison)}"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None)
    for head in heads:
        table.add_column(head, justify="left" if head == "architecture" else "right", overflow="fold")
    for entry, row in zip(comparison.entries, rows, strict=True):
        table.add_row(*row, style="red" if entry.failed and not entry.runs else None)
    return table
