"""The graph of an architecture as an SVG drawing, for pages without a diagram library.

Labels cannot overlap: each label in the gap between two columns has its own row, and a label inside a column is between
two boxes, where no other edge passes.

Colours come from CSS variables with defaults for light and dark pages, and from `currentColor`.
"""

from __future__ import annotations

import itertools
from html import escape

from thespis.core.program import Program
from thespis.report.topology_layout import (
    BOX_WIDTH,
    CHARACTER_WIDTH,
    DRAWING_MARGIN,
    EDGE_BEND,
    FRAME_PADDING,
    FRAME_TITLE,
    LABEL_LINE,
    LABEL_ROW,
    LOOP_DEPTH,
    DrawnEdge,
    EdgeEnds,
    RoleBox,
    RoleColumn,
    TopologyLayout,
    loop_edges,
    loop_room,
    neighbour_edges,
    passing_edges,
    place_roles,
)

_STYLE = """
.topology{--topology-experience:#1b6fb5;--topology-weights:#a05a00;--topology-inference:#7b3fb3;
--topology-gradients:#b0304a;--topology-fill:#80808014;--topology-text:#24292f;color:var(--topology-text)}
@media (prefers-color-scheme:dark){.topology{--topology-experience:#6cb6ff;--topology-weights:#e3a64b;
--topology-inference:#c69cf4;--topology-gradients:#ff8fa3;--topology-text:#e6edf3}}
.topology text{font:12px ui-sans-serif,system-ui,sans-serif;fill:currentColor}
.topology .name{font-size:14px;font-weight:600}
.topology .kind,.topology .process{opacity:.72}
.topology .box{fill:var(--topology-fill);stroke:currentColor;stroke-width:1.3}
.topology .copy{fill:none;stroke:currentColor;stroke-width:1;opacity:.45}
.topology .frame{fill:none;stroke:currentColor;stroke-width:1;stroke-dasharray:3 4;opacity:.6}
.topology .edge{fill:none;stroke-width:1.7}
.topology .label{font-weight:500}
"""
_DASHES = {"weights": "7 3", "inference": "2 3", "gradients": "10 3 2 3"}
"""Kinds of edge also differ by their dashes, for readers who cannot distinguish the colours."""


def topology_svg(program: Program) -> str:
    """Draw a program as an SVG element: a box per role, a frame per shared process, and an arrow per edge."""
    graph = place_roles(program)
    drawn = [_frames(column) for column in graph.columns]
    rows = [graph.height]
    for number in graph.gaps:
        part, lowest = _crossing(graph, number)
        drawn.append(part)
        rows.append(lowest)
    drawn += [_within(column, graph.ports) for column in graph.columns]
    drawn += [_box(box) for box in graph.boxes]
    last = graph.columns[-1]
    return _document(program.name, last.x + last.width + last.padding + DRAWING_MARGIN, max(rows), drawn, graph.edges)


def _crossing(graph: TopologyLayout, number: int) -> tuple[str, float]:
    """Draw the edges of one gap, each in its own row; return them and their lowest point."""
    columns, edges, ports = graph.columns, graph.gaps[number], graph.ports
    left, right = columns[number], columns[number + 1]
    names = {box.role for box in left.boxes}
    start_of = {id(edge): (edge.start if edge.start in names else edge.end) for edge in edges}
    end_of = {id(edge): (edge.end if edge.start in names else edge.start) for edge in edges}

    def ideal(edge: DrawnEdge) -> float:
        return (ports[id(edge), start_of[id(edge)]][1] + ports[id(edge), end_of[id(edge)]][1]) / 2

    ordered = sorted(edges, key=ideal)
    rows: list[float] = []
    for edge in ordered:
        rows.append(max(ideal(edge), rows[-1] + LABEL_ROW) if rows else ideal(edge))
    shift = sum(row - ideal(edge) for row, edge in zip(rows, ordered, strict=True)) / len(rows)
    shift = min(shift, rows[0] - DRAWING_MARGIN - 14)
    west = left.x + left.width + left.padding
    east = right.x - right.padding
    drawn = []
    for row, edge in zip(rows, ordered, strict=True):
        y = row - shift
        (x1, y1), (x2, y2) = ports[id(edge), start_of[id(edge)]], ports[id(edge), end_of[id(edge)]]
        near, far = west + EDGE_BEND - 6, east - EDGE_BEND + 6
        path = (
            f"M{x1:.0f} {y1:.0f}H{west:.0f}C{west + 22:.0f} {y1:.0f} {near - 18:.0f} {y:.0f} {near:.0f} {y:.0f}"
            f"H{far:.0f}C{far + 18:.0f} {y:.0f} {east - 22:.0f} {y2:.0f} {east:.0f} {y2:.0f}H{x2:.0f}"
        )
        drawn.append(_arrow(edge, path, forward=edge.start == start_of[id(edge)]))
        drawn.append(_label(edge, (near + far) / 2, y - 6, "middle"))
    return "\n".join(drawn), max(rows) - shift + DRAWING_MARGIN


def _within(column: RoleColumn, ports: EdgeEnds) -> str:
    """Draw the edges between boxes of one column: straight between neighbours, else along the right side."""
    drawn = []
    for box in column.boxes:
        for place, edge in enumerate(loop_edges(column, box)):
            x, y = box.x + BOX_WIDTH - 34, box.y + box.height
            depth = LOOP_DEPTH * (place + 1) - 8
            path = f"M{x:.0f} {y:.0f}v{depth - 6:.0f}q0 6 6 6h12q6 0 6 -6v{6 - depth:.0f}"
            drawn += [_arrow(edge, path, forward=True), _label(edge, x + 32, y + depth, "start")]
    for above, below in itertools.pairwise(column.boxes):
        top, bottom = above.y + above.height, below.y
        labels = top + loop_room(column, above)
        edges = neighbour_edges(column, above, below)
        for place, edge in enumerate(edges):
            x = above.x + BOX_WIDTH / 2 + 18 * (place - (len(edges) - 1) / 2)
            drawn.append(_arrow(edge, f"M{x:.0f} {top:.0f}V{bottom:.0f}", forward=edge.start == above.role))
            y = (labels + bottom) / 2 + LABEL_LINE * (place - (len(edges) - 1) / 2) + 4
            points = "" if len(edges) == 1 else "↓ " if edge.start == above.role else "↑ "
            drawn.append(_label(edge, above.x + BOX_WIDTH / 2 + 9 * len(edges) + 2, y, "start", points))
        passing = passing_edges(column, above, below)
        for place, edge in enumerate(passing):
            (x1, y1), (x2, y2) = ports[id(edge), edge.start], ports[id(edge), edge.end]
            x = column.x + max(BOX_WIDTH, column.labels) + 10 + 14 * column.outer.index(edge)
            drawn.append(_arrow(edge, f"M{x1:.0f} {y1:.0f}H{x:.0f}V{y2:.0f}H{x2:.0f}", forward=True))
            after = column.x + max(BOX_WIDTH, column.labels) + 14 * len(column.outer) + 4
            y = (labels + bottom) / 2 + LABEL_LINE * (place - (len(passing) - 1) / 2) + 4
            drawn.append(_label(edge, after, y, "start"))
    return "\n".join(drawn)


def _arrow(edge: DrawnEdge, path: str, forward: bool) -> str:
    """Draw a path from left to right or downwards, with an arrowhead at the receiver of the payload."""
    ends = []
    if edge.both or forward:
        ends.append(f'marker-end="url(#topology-{edge.kind})"')
    if edge.both or not forward:
        ends.append(f'marker-start="url(#topology-{edge.kind})"')
    dashes = f' stroke-dasharray="{_DASHES[edge.kind]}"' if edge.kind in _DASHES else ""
    return f'<path class="edge" d="{path}" stroke="var(--topology-{edge.kind})"{dashes} {" ".join(ends)}/>'


def _label(edge: DrawnEdge, x: float, y: float, anchor: str, before: str = "") -> str:
    return f'<text class="label" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(before + edge.label)}</text>'


def _frames(column: RoleColumn) -> str:
    drawn = []
    for process in column.processes:
        if process.framed:
            first, last = process.boxes[0], process.boxes[-1]
            y, bottom = first.y - FRAME_TITLE - 6, last.y + last.height + FRAME_PADDING
            drawn.append(
                f'<rect class="frame" x="{first.x - FRAME_PADDING:.0f}" y="{y:.0f}" rx="8" '
                f'width="{column.width + 2 * FRAME_PADDING:.0f}" height="{bottom - y:.0f}"/>'
                f'<text class="process" x="{first.x - 6:.0f}" y="{y + 15:.0f}">'
                f"{escape('process ' + process.name + _times(process.copies))}</text>"
            )
    return "\n".join(drawn)


def _box(box: RoleBox) -> str:
    middle = box.x + BOX_WIDTH / 2
    size = f'rx="6" width="{BOX_WIDTH}" height="{box.height:.0f}"'
    copies = []
    if box.copies > 1:
        corner = f"M{box.x - 4:.0f} {box.y + box.height - 6:.0f}V{box.y + 2:.0f}q0 -6 6 -6h{BOX_WIDTH - 8}"
        copies.append(f'<path class="copy" d="{corner}"/>')
    return "".join(
        [
            *copies,
            f'<rect class="box" x="{box.x:.0f}" y="{box.y:.0f}" {size}/>',
            f'<text class="name" x="{middle:.0f}" y="{box.middle - 2:.0f}" text-anchor="middle">',
            f"{escape(box.role + _times(box.copies))}</text>",
            f'<text class="kind" x="{middle:.0f}" y="{box.middle + 14:.0f}" text-anchor="middle">',
            f"{escape(box.kind)}</text>",
        ]
    )


def _times(copies: int) -> str:
    return f" ×{copies}" if copies > 1 else ""


def _document(name: str, width: float, height: float, drawn: list[str], edges: list[DrawnEdge]) -> str:
    kinds = list(dict.fromkeys(edge.kind for edge in edges))
    markers = "".join(
        f'<marker id="topology-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
        f'fill="var(--topology-{kind})"/></marker>'
        for kind in kinds
    )
    legend, x, y = [], float(DRAWING_MARGIN), height + 8
    for kind in kinds:
        dashes = f' stroke-dasharray="{_DASHES[kind]}"' if kind in _DASHES else ""
        legend.append(
            f'<path class="edge" d="M{x:.0f} {y:.0f}h34" stroke="var(--topology-{kind})"{dashes}/>'
            f'<text x="{x + 40:.0f}" y="{y + 4:.0f}">{kind}</text>'
        )
        x += 40 + len(kind) * CHARACTER_WIDTH + 24
    width, height = max(width, x), height + 24
    title = escape(f"Roles and edges of {name}")
    description = escape("; ".join(f"{edge.start} to {edge.end}, {edge.label} ({edge.kind})" for edge in edges))
    parts = "\n".join(part for part in (*drawn, *legend) if part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="topology" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">\n<title>{title}</title>\n<desc>{description}</desc>\n'
        f"<style>{_STYLE}</style>\n<defs>{markers}</defs>\n{parts}\n</svg>"
    )
