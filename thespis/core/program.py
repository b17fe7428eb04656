"""A program: the graph of roles and edges that makes an architecture, as data, before anything runs.

An architecture says where roles go and adds them in the order of the paper's figure:

    p = Program("example")
    beside = p.at(process="learner", restarts=3)
    queue = beside.add("queue", Replay.queue, capacity=8)
    beside.add("learner", build_learner, cfg, sample=queue.edge(Replay.sample, items=4))

When the program runs, every edge among a role's arguments has become an async function.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from thespis.core.errors import ThespisError
from thespis.core.service import Method, describe

if TYPE_CHECKING:
    from thespis.core.context import Context

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Q = ParamSpec("Q")


class Call(Protocol[Q, T_co]):
    """What an edge is to its caller while the program runs: an async function with the method's signature."""

    name: str

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Awaitable[T_co]: ...


@dataclass(frozen=True, slots=True)
class Handle(Generic[R_co]):
    """One role of a program, for wiring. `edge` is the only thing to do with it."""

    role: str
    index: int

    @overload
    def edge(self, method: str, /, **demand: Any) -> Any: ...
    @overload
    def edge(self, method: Callable[Concatenate[R_co, Q], Awaitable[T]], /, **demand: Any) -> Call[Q, T]: ...
    def edge(self, method: Any, /, **demand: Any) -> Any:
        """The edge to `method` of this role. `demand` is what the caller will ask of it at once (e.g. `items=8`).

        Returns an `Edge`. Its type is what the builder is given instead when the program runs, so that a type checker
        compares the method with the parameter that the edge is passed for. A method given by name is not checked.
        """
        return Edge(self.role, self.index, method if isinstance(method, str) else method.__name__, demand)


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
    colocate: str | None
    counts_as_actor: bool
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
            try:
                returned = eval(returned, getattr(self.builder, "__globals__", {}))
            except NameError as error:
                builder = f"{self.builder.__module__}.{self.builder.__qualname__}"
                raise ThespisError(
                    f"{self}: {builder} says that it returns {returned!r}, but {error}; import the class where the "
                    "module is imported, not under TYPE_CHECKING, so that the program can see what the role serves"
                ) from error
        return returned if inspect.isclass(returned) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how roles of a program run; `add` adds one there. `dataclasses.replace` makes a similar placement."""

    program: Program
    process: str | None = None
    """Roles of one process name share a process. None: each role has its own."""
    colocate: str | None = None
    """Roles of one such name are put on the same node of a cluster; the others are spread."""
    restarts: int = 0
    """How often a role may be started again after it failed. The roles of a process share the count."""
    cpus: float | None = None
    """CPUs that a cluster keeps free for a role. None: one for a role that runs, none for a service."""
    gpus: float = 0.0
    """GPUs that a cluster keeps free for a role."""
    counts_as_actor: bool = False
    """Whether `--actors` counts these roles, and so `--actors-per-node` does."""
    thread: bool = False
    """Whether long work is done in a thread, so that the other roles of the process can go on."""

    def add(
        self, role: str, builder: Callable[Concatenate[Context, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        """Add a role that `builder(ctx, *args, **kwargs)` makes. The same name again makes its next index."""
        index = self.program.count(role)
        spec = RoleSpec(
            role,
            index,
            builder,
            args,
            kwargs,
            restarts=self.restarts,
            process=self.process or f"{role}-{index}",
            cpus=0.0,
            gpus=self.gpus,
            colocate=self.colocate,
            counts_as_actor=self.counts_as_actor,
            thread=self.thread,
        )
        needs = float(hasattr(spec.kind, "run")) if self.cpus is None else self.cpus
        self.program.roles.append(replace(spec, cpus=needs))
        return Handle(role, index)


class Where(TypedDict, total=False):
    """The settings of `Placement` as keyword arguments."""

    process: str | None
    colocate: str | None
    restarts: int
    cpus: float | None
    gpus: float
    counts_as_actor: bool
    thread: bool


class Arrow(NamedTuple):
    """All edges from roles of one name to one method of a service."""

    caller: str
    callers: int
    service: str
    method: str
    carries: Method


class Program:
    """Roles, edges and who shares a process. Wire it, `check` it, give it to a runtime."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.roles: list[RoleSpec] = []
        self.notes: list[str] = []
        """What a run says when it starts."""

    def at(self, **where: Unpack[Where]) -> Placement:
        """A placement of this program, to add roles to; `Placement` says what each setting means."""
        return Placement(program=self, **where)

    def count(self, role: str) -> int:
        """How many roles of this name there are."""
        return sum(spec.role == role for spec in self.roles)

    @property
    def processes(self) -> dict[str, list[RoleSpec]]:
        """Which roles live together, in the order they were added."""
        homes: dict[str, list[RoleSpec]] = {}
        for spec in self.roles:
            homes.setdefault(spec.process, []).append(spec)
        return homes

    @property
    def weight_holders(self) -> list[tuple[str, int]]:
        """Roles that own the weights: they publish versions, and work for nobody else who does."""
        publishing = {spec.role for spec in self.roles if describe(spec.kind).publishes}
        return [
            spec.key
            for spec in self.roles
            if spec.role in publishing and not any(edge.service in publishing for edge in spec.edges)
        ]

    @property
    def retained(self) -> frozenset[tuple[tuple[str, int], str]]:
        """The methods of services whose last call is sent again when the service was restarted."""
        return frozenset(
            (spec.key, name)
            for spec in self.roles
            for name, method in describe(spec.kind).methods.items()
            if method.retained
        )

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
        served = describe(service.kind).methods
        if not served:
            raise ThespisError(
                f"{self.name}: {caller} calls {service}, which serves no edges; give its class "
                "a `description` with methods, and annotate what its builder returns"
            )
        if edge.method not in served:
            raise ThespisError(
                f"{self.name}: {caller} calls {edge.service}.{edge.method}, "
                f"but {edge.service} only has {', '.join(served)}"
            )

    # -- what `thespis show` and topology.json say ------------------------------------------------

    def arrows(self) -> list[Arrow]:
        """Each distinct arrow once, however many roles of one name have it."""
        found: Counter[tuple[str, str, str]] = Counter()
        methods: dict[tuple[str, str, str], Method] = {}
        for spec in self.roles:
            for edge in spec.edges:
                service = self.find(edge.service, edge.index)
                arrow = spec.role, edge.service, edge.method
                found[arrow] += 1
                methods[arrow] = describe(service.kind if service else None).methods[edge.method]
        return [
            Arrow(caller, number, service, method, methods[caller, service, method])
            for (caller, service, method), number in found.items()
        ]

    def describe(self) -> dict[str, Any]:
        return {
            "program": self.name,
            "roles": {
                spec.role: {"kind": spec.kind and spec.kind.__name__, "evaluates": describe(spec.kind).evaluates}
                for spec in self.roles
            },
            "processes": {
                home: [{"role": spec.role, "index": spec.index, "restarts": spec.restarts} for spec in specs]
                for home, specs in self.processes.items()
            },
            "edges": [
                {
                    "caller": arrow.caller,
                    "callers": arrow.callers,
                    "service": arrow.service,
                    "method": arrow.method,
                    **asdict(arrow.carries),
                }
                for arrow in self.arrows()
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
