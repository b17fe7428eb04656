"""A program: the graph of roles and edges that makes an architecture, as data, before anything runs.

An architecture adds roles in the order of the paper's figure. `add` returns a handle; `handle.edge("method")`
is the arrow to it. When the program runs, every edge among a role's arguments has become an async function.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thespis.errors import ThespisError


@dataclass(frozen=True, slots=True)
class Handle:
    """One role of a program, for wiring. `edge` is the only thing to do with it."""

    role: str
    index: int

    def edge(self, method: str, **demand: Any) -> Edge:
        """An arrow to `method` of this role. `demand` is what the caller will ask of it at once (e.g. `items=8`)."""
        return Edge(self.role, self.index, method, demand)


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow: a method of a service that a role will await."""

    service: str
    index: int
    method: str
    demand: Mapping[str, Any] = field(default_factory=dict)

    def name(self, caller: str) -> str:
        return f"{caller}.{self.service}.{self.method}"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How to build one role: `builder(ctx, *args, **settings)`, with edges turned into async functions."""

    role: str
    index: int
    builder: Callable[..., Any]
    args: tuple[Any, ...]
    settings: Mapping[str, Any]
    restarts: int
    process: str
    cpus: float
    gpus: float
    near: str | None
    actor: bool
    thread: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.role, self.index

    def __str__(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def edges(self) -> list[Edge]:
        """All arrows among its arguments; one of these may also be a tuple of arrows, as to the shards of a service."""
        parts = (*self.args, *self.settings.values())
        return [
            edge for part in parts for edge in (part if isinstance(part, tuple) else (part,)) if isinstance(edge, Edge)
        ]

    @property
    def kind(self) -> type | None:
        """The class of the role, where the builder tells: a class, its classmethod, or an annotated function."""
        if inspect.isclass(self.builder):
            return self.builder
        owner = getattr(self.builder, "__self__", None)
        if inspect.isclass(owner):
            return owner
        returned = getattr(self.builder, "__annotations__", {}).get("return")
        if isinstance(returned, str):
            # Only what it returns: the other annotations may name what is imported for type checkers alone.
            returned = eval(returned, getattr(self.builder, "__globals__", {}))
        return returned if inspect.isclass(returned) else None


class Program:
    """Roles, edges and who shares a process. Wire it, `check` it, give it to a runtime."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.roles: list[RoleSpec] = []
        self.notes: list[str] = []
        """What a run says when it starts."""

    def add(
        self,
        role: str,
        builder: Callable[..., Any],
        *args: Any,
        restarts: int = 0,
        process: str | None = None,
        cpus: float | None = None,
        gpus: float = 0.0,
        near: str | None = None,
        actor: bool = False,
        thread: bool = False,
        **settings: Any,
    ) -> Handle:
        """Add a role. Adding the same name again makes the next index of it.

        `restarts`: how often it may be started again after it failed; its process shares the count.
        `process`: roles of one process name share a process; by default each has its own.
        `cpus`, `gpus`: what a cluster keeps free for it; by default one CPU for a role that runs, none for a service.
        `near`: roles of one such name are put on the same node of a cluster; the others are spread.
        `actor`: it is one of those that `--actors` counts, so `--actors-per-node` does too.
        `thread`: its long work is done in a thread, so that the other roles of its process can go on.
        """
        index = sum(spec.role == role for spec in self.roles)
        home = process or f"{role}-{index}"
        spec = RoleSpec(role, index, builder, args, settings, restarts, home, 0.0, gpus, near, actor, thread)
        needs = float(hasattr(spec.kind, "run")) if cpus is None else cpus
        self.roles.append(replace(spec, cpus=needs))
        return Handle(role, index)

    @property
    def processes(self) -> dict[str, list[RoleSpec]]:
        """Which roles live together, in the order they were added."""
        homes: dict[str, list[RoleSpec]] = {}
        for spec in self.roles:
            homes.setdefault(spec.process, []).append(spec)
        return homes

    def find(self, role: str, index: int) -> RoleSpec | None:
        return next((spec for spec in self.roles if spec.key == (role, index)), None)

    def incoming(self, role: str, index: int) -> list[tuple[RoleSpec, Edge]]:
        return [
            (caller, edge)
            for caller in self.roles
            for edge in caller.edges
            if (edge.service, edge.index) == (role, index)
        ]

    def check(self) -> None:
        """Refuse what cannot run or would wait for ever, with a sentence that says what to change."""
        for spec in self.roles:
            for edge in spec.edges:
                self._check_edge(spec, edge)
            _check_picklable(spec)
            refuse = getattr(spec.kind, "refuse", None)
            if refuse is not None:
                refuse(f"{spec.role}", dict(spec.settings), [edge for _, edge in self.incoming(*spec.key)])

    def _check_edge(self, caller: RoleSpec, edge: Edge) -> None:
        service = self.find(edge.service, edge.index)
        if service is None:
            raise ThespisError(f"{self.name}: {caller} calls {edge.service!r} {edge.index}, but no such role was added")
        served: Mapping[str, str] | None = getattr(service.kind, "EDGES", None)
        if served is None:
            raise ThespisError(
                f"{self.name}: {caller} calls {service}, which serves no edges; give its class "
                "an EDGES table and annotate what its builder returns"
            )
        if edge.method not in served:
            raise ThespisError(
                f"{self.name}: {caller} calls {edge.service}.{edge.method}, "
                f"but {edge.service} only has {', '.join(served)}"
            )

    # -- what `thespis show` and topology.json say ------------------------------------------------

    def arrows(self) -> list[tuple[str, int, str, str, str]]:
        """Each distinct arrow as (caller, how many callers, service, method, kind of edge)."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for spec in self.roles:
            for edge in spec.edges:
                service = self.find(edge.service, edge.index)
                kind = getattr(service.kind if service else None, "EDGES", {}).get(edge.method, "edge")
                found[spec.role, edge.service, edge.method, kind] += 1
        return [(caller, number, service, method, kind) for (caller, service, method, kind), number in found.items()]

    def describe(self) -> dict[str, Any]:
        return {
            "program": self.name,
            "processes": {
                home: [{"role": spec.role, "index": spec.index, "restarts": spec.restarts} for spec in specs]
                for home, specs in self.processes.items()
            },
            "edges": [
                {"caller": caller, "callers": number, "service": service, "method": method, "kind": kind}
                for caller, number, service, method, kind in self.arrows()
            ],
        }


def shared(programs: Sequence[RoleSpec]) -> int:
    """How often a process may be restarted: as often as its least patient role allows."""
    return min(spec.restarts for spec in programs)


def _check_picklable(spec: RoleSpec) -> None:
    import cloudpickle

    for part in (spec.builder, *spec.args, *spec.settings.values()):
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise ThespisError(
                f"{spec}: {part!r} cannot be sent to another process ({error}); pass what builds it instead"
            ) from error
