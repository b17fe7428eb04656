"""The display of a live run: a panel on a terminal, one plain line per report elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import cycle
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thespis.runs.interval import RoleShare
from thespis.runs.monitor import WINDOW
from thespis.runs.terminal.formatting import algorithm_title, bar, format_duration, format_number, sparkline
from thespis.runs.terminal.view import EvaluationView, View

WIDTH = 100
_NARROWEST = 70
_LABELS = 17
_BUSY = ("green3", "cyan3", "medium_purple2", "gold3", "orange3")
_WAIT = "grey35"
_FONT = re.compile(r"\s*@font-face {.*?}", re.DOTALL)
_FILLS = (("queue", "queue/fill"), ("replay", "replay/fill"), ("batch", "inference/batch_fill"))


class Panel:
    """A live panel, drawn by `update` alone: without a thread of its own it cannot tear or outlive the run."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def update(self, view: View) -> None:
        """Draw `view` now; four times a second is smooth enough."""
        self._live.update(render(view, self._live.console.width), refresh=True)


class Lines:
    """One plain line per report, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, view: View) -> None:
        """Print `view` as one line."""
        print(line(view), file=self._stream, flush=True)


def line(view: View) -> str:
    """The view as one line, without values that do not apply to the architecture."""
    metrics = view.metrics
    steps = f"{view.env_steps:,}" + (f"/{view.total_steps:,}" if view.total_steps is not None else "")
    parts = [
        f"[{_elapsed(view)}]",
        f"steps {steps}",
        f"{format_number(view.steps_per_second)}/{_second(view)}",
        f"updates {view.updates:,}",
        f"training return {format_number(view.return_mean)}",
    ]
    if view.evaluation is not None:
        greedy, at = view.evaluation.return_mean, view.evaluation.env_steps
        parts.append(f"greedy return {format_number(greedy)}" + (f" at {at:,}" if at is not None else ""))
    if "lag/mean" in metrics:
        parts.append(f"lag {format_number(metrics['lag/mean'])} max {format_number(metrics['lag/max'])}")
    parts += [f"{name} {metrics[key]:.0%}" for name, key in _FILLS if key in metrics]
    if view.samples_per_insert is not None:
        parts.append(f"samples/insert {format_number(view.samples_per_insert)}")
    if view.seconds_left is not None:
        parts.append(f"left {format_duration(view.seconds_left)}{' real' if view.real else ''}")
    if view.restarts:
        parts.append(f"restarts {sum(view.restarts.values())}")
    if view.dropped:
        parts.append(f"dropped {sum(view.dropped.values())}")
    return "  ".join(parts)


def _elapsed(view: View) -> str:
    """Run time; for a simulated run, virtual and real time."""
    if view.real is None:
        return format_duration(view.elapsed)
    return f"{format_duration(view.elapsed)} virtual, {format_duration(view.real.seconds)} real"


def _second(view: View) -> str:
    """The unit of the run's own time."""
    return "s" if view.real is None else "virtual s"


def render(view: View, columns: int) -> RenderableType:
    """The panel for a terminal of `columns` columns; 70 to 100 wide, because longer lines are hard to read."""
    width = max(_NARROWEST, min(columns, WIDTH))
    inner = width - 6
    who = view.identity
    what = algorithm_title(who.architecture, who.algorithm)
    title = Text.assemble((what, "bold cyan"), "  ", (who.env, "bold"), "  ", (f"on {who.on}", "dim"))
    body = [_progress(view), Text(), _figures(view, inner), Text(), _roles(view, inner)]
    if view.nodes:
        body += [Text(), *_nodes(view)]
    trouble = list(_trouble(view))
    if trouble:
        body += [Text(), *trouble]
    subtitle = Text(f"seed {who.seed}", "dim")
    return Frame(
        Group(*body), title=title, title_align="left", subtitle=subtitle, subtitle_align="right",
        width=width, padding=(1, 2), border_style="grey42",
    )  # fmt: skip


def _progress(view: View) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    left = (
        "" if view.seconds_left is None else f"{format_duration(view.seconds_left)}{' real' if view.real else ''} left"
    )
    if view.done is None:
        row.add_row(Text(f"{view.env_steps:,} steps"), Text(_elapsed(view), "dim", justify="right"))
        return row
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    done = ProgressBar(1.0, view.done, complete_style="cyan", finished_style="green3")
    limit = f" / {format_number(view.total_steps)}" if view.total_steps is not None else ""
    steps = Text.assemble((f"{view.env_steps:,}", "bold"), (f"{limit} steps", "dim"))
    row.add_row(steps, done, Text.assemble(_elapsed(view), ("  " if left else "") + left))
    return row


def _figures(view: View, width: int) -> RenderableType:
    metrics = view.metrics
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=_LABELS, no_wrap=True)
    table.add_column(width=10, no_wrap=True, justify="right")
    table.add_column(no_wrap=True, width=width - _LABELS - 14)
    table.add_row(
        "training return",
        Text(format_number(view.return_mean), "bold green3" if view.reached else "bold"),
        _curve(view, width - _LABELS - 14),
    )
    if view.evaluation is not None:
        table.add_row(
            "greedy return", Text(format_number(view.evaluation.return_mean), "bold"), _evaluated(view.evaluation)
        )
    episodes = Text(f"{view.episodes:,} episodes", "dim")
    table.add_row(f"steps / {_second(view)}", format_number(view.steps_per_second), episodes)
    lag = (
        f"lag mean {format_number(metrics['lag/mean'])}  max {format_number(metrics['lag/max'])}"
        if "lag/mean" in metrics
        else ""
    )
    table.add_row("updates", f"{view.updates:,}", Text(lag, "dim"))
    for name, key in _FILLS:
        if key in metrics:
            filled = Text.assemble((bar(metrics[key], 20), "cyan on grey15"))
            table.add_row(f"{name} fill", f"{metrics[key]:.0%}", filled)
    if view.samples_per_insert is not None:
        table.add_row("samples/insert", format_number(view.samples_per_insert), "")
    return table


def _curve(view: View, width: int) -> Text:
    """The training return over time, the goal, and the number of episodes in the mean while it is below 100."""
    after = f"  goal {format_number(view.threshold)}" if view.threshold is not None else ""
    if 0 < view.return_episodes < WINDOW:
        after += f"  mean of {view.return_episodes}"
    curve = sparkline(view.history, width - len(after))
    return Text.assemble((curve, "green3" if view.reached else "cyan"), (after if curve else after.lstrip(), "dim"))


def _evaluated(evaluation: EvaluationView) -> Text:
    at = "" if evaluation.env_steps is None else f" at {evaluation.env_steps:,} steps"
    return Text(f"evaluation of {evaluation.episodes} episodes{at}", "dim")


def _roles(view: View, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    meter, work = (20, 26) if width >= 94 else (12, 18)
    names = min(16, max([10, *map(len, view.roles)]))
    for column in (names, 4, meter, work, 4, width - 18 - names - meter - work):
        table.add_column(width=column, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(name, "dim") for name in ("role", "n", "time", "works", "wait", "waits on")))
    for role, share in view.roles.items():
        waits = "" if share.waits_on is None else share.waits_on.removeprefix(f"{role}.")
        wait = Text(f"{share.wait:4.0%}", "yellow3" if share.wait > 0.5 else "")
        table.add_row(
            Text(role, "bold"), str(share.count), _meter(share, meter), _work(share, work), wait, Text(waits, "dim")
        )
    return table


def _colors(share: RoleShare) -> dict[str, str]:
    """A colour per kind of work, the same in every frame, in the bar and in the text."""
    return dict(zip(sorted(share.busy), cycle(_BUSY), strict=False))


def _work(share: RoleShare, width: int) -> Text:
    """The kinds of work, largest share first, as many as fit: a truncated name could be misread as another."""
    text = Text()
    colors = _colors(share)
    for kind in sorted(share.busy, key=lambda kind: -share.busy[kind]):
        entry = ("  " if text else "") + f"{kind} {share.busy[kind]:.0%}"
        if len(text) + len(entry) <= width or not text:
            text.append(entry, colors[kind])
    return text


def _meter(share: RoleShare, width: int) -> Text:
    """Work by kind in colours, waiting in grey, the rest idle; the full width is the role's whole time."""
    text = Text()
    shares = [(share.busy[kind], color) for kind, color in _colors(share).items()]
    for part, color in [*shares, (share.wait, _WAIT)]:
        text.append("█" * min(round(part * width), width - len(text)), color)
    return text.append("░" * (width - len(text)), "grey19")


def _nodes(view: View) -> Iterator[Text]:
    """One line per node, with its roles."""
    by_node: dict[str, list[str]] = {}
    for role, node in view.nodes.items():
        by_node.setdefault(node, []).append(role)
    for node, roles in sorted(by_node.items()):
        yield Text.assemble((f"{node:16}", "bold"), ("  ".join(roles), "dim"), no_wrap=True, overflow="ellipsis")


def _trouble(view: View) -> Iterator[Text]:
    for name, counts in (("restarts", view.restarts), ("dropped", view.dropped)):
        if counts:
            listed = "  ".join(f"{key} {count:,}" for key, count in counts.items())
            yield Text(f"{name}  {listed}", "yellow3", no_wrap=True, overflow="ellipsis")


def render_svg(view: View) -> str:
    """The panel as SVG. It loads no font: a viewer would show no text until a download fails."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(render(view, WIDTH))
    svg = console.export_svg(title=f"thespis train {view.identity.architecture}")
    return _FONT.sub("", svg)
