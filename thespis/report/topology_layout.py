"""Layout of the roles and edges of an architecture for a drawing.

Processes are columns from left to right, starting at the actors. A breadth-first search assigns the columns, so every
edge stays in a column or crosses one gap.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from thespis.core.program import Program

BOX_WIDTH = 132
_BOX_HEIGHT = 44
_PORT = 24
"""Vertical distance of two edges at the side of a box."""
LABEL_ROW = 30
"""Vertical distance of two labels in a gap."""
LABEL_LINE = 17
"""Vertical distance of two labels between the boxes of a column."""
LOOP_DEPTH = 26
"""Vertical distance of two edges between roles of one name."""
CHARACTER_WIDTH = 6.7
"""Width of a character of a label, rounded up, because the reader's font is unknown."""
EDGE_BEND = 34
"""Horizontal room in which an edge moves from its port to the row of its label."""
FRAME_PADDING = 16
FRAME_TITLE = 18
_BETWEEN = 30
DRAWING_MARGIN = 20
_MOST_ORDERS = 5_000
"""Maximum number of orders to try for a column."""


@dataclass
class RoleBox:
    """The box of a role; `copies` roles share it."""

    role: str
    kind: str
    copies: int
    x: float = 0.0
    y: float = 0.0
    height: float = _BOX_HEIGHT

    @property
    def middle(self) -> float:
        """Height of the centre."""
        return self.y + self.height / 2


@dataclass
class _Process:
    """The roles that share a process; `copies` processes are alike."""

    name: str
    copies: int
    boxes: list[RoleBox]

    @property
    def framed(self) -> bool:
        """Whether a frame shows that the roles share a process."""
        return len(self.boxes) > 1


@dataclass(eq=False)
class DrawnEdge:
    """An arrow in the direction of its payload. `both`: payloads travel in both directions."""

    start: str
    end: str
    label: str
    kind: str
    both: bool

    @property
    def width(self) -> float:
        """Width of the label."""
        return len(self.label) * CHARACTER_WIDTH


@dataclass
class RoleColumn:
    """Processes one below the other, and the edges between their boxes."""

    processes: list[_Process]
    x: float = 0.0
    inner: list[DrawnEdge] = field(default_factory=list)
    """Edges between neighbours."""
    outer: list[DrawnEdge] = field(default_factory=list)
    """Edges that pass other boxes of the column."""
    loops: list[DrawnEdge] = field(default_factory=list)
    """Edges between roles of one name."""
    labels: float = 0.0
    """Right end of the labels between boxes, from the left side of the boxes."""

    @property
    def boxes(self) -> list[RoleBox]:
        """The roles, from top to bottom."""
        return [box for process in self.processes for box in process.boxes]

    @property
    def padding(self) -> float:
        """Horizontal room between the boxes and the edges that leave the column."""
        return FRAME_PADDING if any(process.framed for process in self.processes) else FRAME_PADDING / 2

    @property
    def width(self) -> float:
        """Width of boxes, labels and passing edges."""
        lanes = 14 * len(self.outer) + 10 + max((edge.width for edge in self.outer), default=0) if self.outer else 0
        return max(BOX_WIDTH, self.labels) + lanes


@dataclass
class TopologyLayout:
    """Columns from left to right, the edges of the gap after each column, and the points where edges touch boxes."""

    columns: list[RoleColumn]
    gaps: dict[int, list[DrawnEdge]]
    edges: list[DrawnEdge]
    ports: EdgeEnds
    height: float

    @property
    def boxes(self) -> list[RoleBox]:
        """All roles."""
        return [box for column in self.columns for box in column.boxes]


def place_roles(program: Program) -> TopologyLayout:
    """Compute the layout of a program."""
    processes, edges = _processes(program), _edges(program)
    columns = _columns(processes, edges, _first(program))
    where = {box.role: number for number, column in enumerate(columns) for box in column.boxes}
    gaps: dict[int, list[DrawnEdge]] = defaultdict(list)
    for edge in edges:
        column = columns[where[edge.start]]
        if edge.start == edge.end:
            column.loops.append(edge)
        elif where[edge.start] == where[edge.end]:
            (column.inner if _adjacent(column, edge) else column.outer).append(edge)
        else:
            gaps[min(where[edge.start], where[edge.end])].append(edge)
    height = _place(columns, gaps)
    boxes = {box.role: box for column in columns for box in column.boxes}
    sideways = itertools.chain(*gaps.values(), *(column.outer for column in columns))
    return TopologyLayout(columns, dict(gaps), edges, _ports(boxes, where, list(sideways)), height)


def _processes(program: Program) -> list[_Process]:
    """Return one process of each kind, in the order of the program."""
    found: dict[tuple[str, ...], _Process] = {}
    for name, specs in program.processes.items():
        roles = tuple(spec.role for spec in specs)
        if roles in found:
            found[roles].copies += 1
            continue
        kinds = {spec.role: spec.kind.__name__ if spec.kind else "" for spec in specs}
        counts = Counter(spec.role for spec in specs)
        boxes = [RoleBox(role, kinds[role], counts[role]) for role in kinds]
        found[roles] = _Process(re.sub(r"-0$", "", name), 1, boxes)
    for process in found.values():
        if not process.framed:
            process.boxes[0].copies *= process.copies
    return list(found.values())


def _edges(program: Program) -> list[DrawnEdge]:
    edges = []
    for arrow in program.arrows():
        takes, gives, kind = arrow.carries.takes, arrow.carries.gives, arrow.carries.kind
        start, end = (arrow.service, arrow.caller) if gives and not takes else (arrow.caller, arrow.service)
        payload = " ⇄ ".join(part for part in (takes, gives) if part)
        edges.append(DrawnEdge(start, end, f"{arrow.method}: {payload}", kind, bool(takes and gives)))
    return edges


def _first(program: Program) -> set[str]:
    """Return the roles of the leftmost column: the actors, or the roles without callers."""
    actors = {spec.role for spec in program.roles if spec.counts_as_actor}
    called = {arrow.service for arrow in program.arrows()}
    callers = {arrow.caller for arrow in program.arrows()}
    return actors or (callers - called) or {program.roles[0].role}


def _columns(processes: list[_Process], edges: list[DrawnEdge], first: set[str]) -> list[RoleColumn]:
    """Group processes by their distance from the actors; the direction of edges does not matter."""
    owner = {box.role: number for number, process in enumerate(processes) for box in process.boxes}
    neighbours: dict[int, set[int]] = defaultdict(set)
    for edge in edges:
        neighbours[owner[edge.start]].add(owner[edge.end])
        neighbours[owner[edge.end]].add(owner[edge.start])
    distance = {owner[role]: 0 for role in first}
    waiting = list(distance)
    while len(distance) < len(processes):
        if not waiting:  # the remaining processes are not connected to the visited ones
            waiting = [next(number for number in range(len(processes)) if number not in distance)]
            distance[waiting[0]] = 0
        number = waiting.pop(0)
        for other in sorted(neighbours[number] - distance.keys()):
            distance[other] = distance[number] + 1
            waiting.append(other)
    columns: list[RoleColumn] = []
    for place in range(max(distance.values()) + 1):
        here = [process for number, process in enumerate(processes) if distance[number] == place]
        columns.append(_ordered(here, edges, columns[-1] if columns else None))
    return columns


def _ordered(processes: list[_Process], edges: list[DrawnEdge], before: RoleColumn | None) -> RoleColumn:
    """Order the processes, and the roles in each, for short edges and few crossings."""
    inside = [list(itertools.permutations(process.boxes)) for process in processes]
    orders = itertools.product(itertools.permutations(range(len(processes))), itertools.product(*inside))
    known = {box.role: number for number, box in enumerate(before.boxes)} if before else {}
    best: tuple[tuple[int, ...], tuple[tuple[RoleBox, ...], ...]] | None = None
    least = float("inf")
    for order, boxes in itertools.islice(orders, _MOST_ORDERS):
        rank = {box.role: place for place, box in enumerate(itertools.chain(*(boxes[number] for number in order)))}
        cost = _cost(rank, known, edges)
        if cost < least:
            best, least = (order, boxes), cost
    assert best is not None
    for process, stacked in zip(processes, best[1], strict=True):
        process.boxes = list(stacked)
    return RoleColumn([processes[number] for number in best[0]])


def _cost(rank: dict[str, int], known: dict[str, int], edges: Iterable[DrawnEdge]) -> float:
    cost = 0.0
    crossing = []
    for edge in edges:
        if edge.start in rank and edge.end in rank:
            step = rank[edge.end] - rank[edge.start]
            cost += 4 * (abs(step) - 1) + (0.5 if step < 0 else 0)
        elif edge.start in rank and edge.end in known:
            crossing.append((known[edge.end], rank[edge.start]))
        elif edge.end in rank and edge.start in known:
            crossing.append((known[edge.start], rank[edge.end]))
    crossed = sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in itertools.combinations(crossing, 2))
    return cost + 3 * crossed + 0.1 * sum(place for _, place in crossing)


def _adjacent(column: RoleColumn, edge: DrawnEdge) -> bool:
    roles = [box.role for box in column.boxes]
    return abs(roles.index(edge.start) - roles.index(edge.end)) == 1


def neighbour_edges(column: RoleColumn, above: RoleBox, below: RoleBox) -> list[DrawnEdge]:
    """Return the edges between two boxes, one above the other."""
    return [edge for edge in column.inner if {edge.start, edge.end} == {above.role, below.role}]


def passing_edges(column: RoleColumn, above: RoleBox, below: RoleBox) -> list[DrawnEdge]:
    """Return the edges that pass these two boxes and have their label between them."""
    roles = [box.role for box in column.boxes]
    here = roles.index(below.role)
    found = []
    for edge in column.outer:
        low, high = sorted((roles.index(edge.start), roles.index(edge.end)))
        if (low + high + 1) // 2 == here:
            found.append(edge)
    return found


def loop_edges(column: RoleColumn, box: RoleBox) -> list[DrawnEdge]:
    """Return the edges between roles with the name of this box."""
    return [edge for edge in column.loops if edge.start == box.role]


def loop_room(column: RoleColumn, box: RoleBox) -> float:
    """Return the height of these edges below the box."""
    return LOOP_DEPTH * len(loop_edges(column, box))


def _place(columns: list[RoleColumn], gaps: dict[int, list[DrawnEdge]]) -> float:
    """Set the position of every box; return the height of the drawing."""
    sides = _sides(columns, gaps)
    x, heights = DRAWING_MARGIN + columns[0].padding, []
    for number, column in enumerate(columns):
        column.x = x
        heights.append(_stack(column, sides))
        widest = max((edge.width for edge in gaps.get(number, [])), default=0.0)
        x += column.width + widest + 2 * EDGE_BEND + column.padding
        x += columns[number + 1].padding if number + 1 < len(columns) else 0
    height = max(*heights, *(LABEL_ROW * (len(edges) + 1) for edges in gaps.values()), 0.0)
    for column, own in zip(columns, heights, strict=True):
        for box in column.boxes:
            box.y += DRAWING_MARGIN + (height - own) / 2
    return height + 2 * DRAWING_MARGIN


def _sides(columns: list[RoleColumn], gaps: dict[int, list[DrawnEdge]]) -> Counter[tuple[str, str]]:
    """Count the edges at each side of each box."""
    sides: Counter[tuple[str, str]] = Counter()
    where = {box.role: number for number, column in enumerate(columns) for box in column.boxes}
    for edge in itertools.chain(*gaps.values(), *(column.outer for column in columns)):
        for role, other in ((edge.start, edge.end), (edge.end, edge.start)):
            sides[role, "left" if where[other] < where[role] else "right"] += 1
    return sides


def _stack(column: RoleColumn, sides: Counter[tuple[str, str]]) -> float:
    """Place the boxes of a column one below the other, with room for the labels between them; return its height."""
    y = 0.0
    above: RoleBox | None = None
    last: _Process | None = None
    for process in column.processes:
        if process.framed:
            y += FRAME_TITLE
        if last is not None and (process.framed or last.framed):
            y += FRAME_PADDING
        for box in process.boxes:
            if above is not None:
                y += _room(column, above, box)
            box.x, box.y = column.x, y
            ports = max(sides[box.role, "left"], sides[box.role, "right"])
            box.height = max(_BOX_HEIGHT, _PORT * (ports + 0.6))
            y += box.height
            above = box
        last = process
    for edge in column.loops:
        column.labels = max(column.labels, BOX_WIDTH + edge.width + 8)
    y += loop_room(column, above) if above is not None else 0
    return y + (FRAME_PADDING if last is not None and last.framed else 0)


def _room(column: RoleColumn, above: RoleBox, below: RoleBox) -> float:
    """Return the height between two boxes, and widen the column for the labels there."""
    edges = neighbour_edges(column, above, below)
    if edges:
        arrows = BOX_WIDTH / 2 + 9 * len(edges) + 8
        column.labels = max(column.labels, arrows + max(edge.width for edge in edges) + 16)
    lines = max(len(edges), len(passing_edges(column, above, below)))
    return max(_BETWEEN, LABEL_LINE * lines + 26) + loop_room(column, above)


EdgeEnds = dict[tuple[int, str], tuple[float, float]]
"""The point where an edge touches a box, by the edge's id() and the box's role."""


def _ports(boxes: dict[str, RoleBox], where: dict[str, int], edges: list[DrawnEdge]) -> EdgeEnds:
    """Return the ends of edges at the sides of boxes.

    Edges on one side of a box are in the order of their other ends, so that they do not cross.
    """
    sides: dict[tuple[str, str], list[tuple[float, int, DrawnEdge]]] = defaultdict(list)
    for number, edge in enumerate(edges):
        for role, other in ((edge.start, edge.end), (edge.end, edge.start)):
            side = "left" if where[other] < where[role] else "right"
            sides[role, side].append((boxes[other].middle, number, edge))
    ports: EdgeEnds = {}
    for (role, side), touching in sides.items():
        box = boxes[role]
        for place, (_, _, edge) in enumerate(sorted(touching, key=lambda each: each[:2])):
            y = box.y + box.height * (place + 1) / (len(touching) + 1)
            ports[id(edge), role] = (box.x if side == "left" else box.x + BOX_WIDTH, y)
    return ports
