"""A program: the graph of roles and edges that makes an architecture, as data, before anything runs.

An architecture creates placements and adds roles to them, in the order of the paper's figure:

    p = Program("example")
    learner_process = p.at(process="learner", restarts=3)
    queue = learner_process.add("queue", Queue, capacity=8)
    learner_process.add("learner", build_learner, cfg, sample=queue.edge(Queue.sample, items=4))

The runtime replaces every `Edge` among a role's arguments with an async function before it calls the role's builder.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
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
from thespis.core.service import Method, description_of
from thespis.core.settings import is_config, walk_settings

if TYPE_CHECKING:
    from thespis.core.context import Context

_R = TypeVar("_R")
R_co = TypeVar("R_co", covariant=True)
_T = TypeVar("_T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Q = ParamSpec("Q")


class MethodCall(Protocol[Q, T_co]):
    """An edge at run time: an async function with the signature of the service's method."""

    name: str

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Awaitable[T_co]: ...


@dataclass(frozen=True, slots=True)
class Handle(Generic[R_co]):
    """A reference to one role of a program. Its only use is to make edges to that role."""

    role: str
    index: int

    @overload
    def edge(self, method: str, /, **demand: Any) -> Any:
        """Make an edge to a method given by name; type checkers do not check it."""

    @overload
    def edge(self, method: Callable[Concatenate[R_co, Q], Awaitable[_T]], /, **demand: Any) -> MethodCall[Q, _T]:
        """Make an edge to a method given as a function; type checkers compare the signatures."""

    def edge(self, method: Any, /, **demand: Any) -> Any:
        """Make an edge to `method` of this role.

        `demand` states the largest request that the caller makes (e.g. `items=8`). `Program.check` passes it to the
        service, which rejects a demand that it could never meet.

        The returned object is an `Edge`. Its declared type is that of the async function that replaces it at run time,
        so a type checker compares the method with the builder's parameter. A method given by name is not checked.
        """
        return Edge(self.role, self.index, method if isinstance(method, str) else method.__name__, demand)


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of the graph: a method of a service that a role awaits. `demand`: see `Handle.edge`."""

    service: str
    index: int
    method: str
    demand: Mapping[str, Any] = field(default_factory=dict)

    def name(self, caller: str) -> str:
        """The name of the edge in metrics, `caller.service.method`."""
        return f"{caller}.{self.service}.{self.method}"


def edges_in(argument: Any) -> list[Edge]:
    """All edges in an argument: an edge, or a tuple that holds some, e.g. to the shards of a service."""
    if isinstance(argument, tuple):
        return [edge for part in argument for edge in edges_in(part)]
    return [argument] if isinstance(argument, Edge) else []


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The specification of one role. The runtime calls `builder(ctx, *args, **settings)`, with functions for edges.

    The fields from `restarts` on come from the role's `Placement`.
    """

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
    replicated: bool

    @property
    def key(self) -> tuple[str, int]:
        """The role's name and index, which identify it in the program."""
        return self.role, self.index

    def __str__(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def edges(self) -> list[Edge]:
        """All edges among the arguments."""
        return edges_in((*self.args, *self.settings.values()))

    @property
    def kind(self) -> type | None:
        """The class of the role, if the builder is a class, a classmethod, or a function with a return annotation."""
        if inspect.isclass(self.builder):
            return self.builder
        owner = getattr(self.builder, "__self__", None)
        if inspect.isclass(owner):
            return owner
        returned = getattr(self.builder, "__annotations__", {}).get("return")
        if isinstance(returned, str):
            # Evaluate only the return annotation: other annotations may name imports under TYPE_CHECKING.
            try:
                returned = eval(returned, getattr(self.builder, "__globals__", {}))
            except NameError as error:
                builder = f"{self.builder.__module__}.{self.builder.__qualname__}"
                raise ThespisError(
                    f"{self}: the return annotation {returned!r} of {builder} cannot be evaluated: {error}; import the "
                    "class at run time, not under TYPE_CHECKING, so that the program knows the role's methods"
                ) from error
        return returned if inspect.isclass(returned) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how a group of roles runs. `add` adds a role; `dataclasses.replace` derives a similar placement."""

    program: Program
    process: str | None = None
    """The process of the roles: roles with the same process name share one. None: each role gets its own process."""
    colocate: str | None = None
    """The node group: a cluster puts roles with the same group on one node and spreads all other roles."""
    restarts: int = 0
    """How many times a failed role is restarted. The roles of one process share the count."""
    cpus: float | None = None
    """CPUs that a cluster reserves for a role. None: one for a role with a `run` method, none for a service."""
    gpus: float = 0.0
    """GPUs that a cluster reserves for a role."""
    counts_as_actor: bool = False
    """Whether `--actors` and `--actors-per-node` count these roles."""
    thread: bool = False
    """Whether `Context.run_in_thread` uses a thread, so that the process's other roles keep running."""
    replicated: bool = False
    """Whether all roles of one name hold the same state. Any of them is then enough for a checkpoint, and a restarted
    one loads the newest."""

    def add(
        self, role: str, builder: Callable[Concatenate[Context, P], _R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[_R]:
        """Add a role that `builder(ctx, *args, **kwargs)` makes. Each further role of a name gets the next index."""
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
            replicated=self.replicated,
        )
        needs = float(hasattr(spec.kind, "run")) if self.cpus is None else self.cpus
        self.program.append(replace(spec, cpus=needs))
        return Handle(role, index)


class PlacementOptions(TypedDict, total=False):
    """Keyword arguments of `Program.at`: the settings of `Placement`."""

    process: str | None
    colocate: str | None
    restarts: int
    cpus: float | None
    gpus: float
    counts_as_actor: bool
    thread: bool
    replicated: bool


class Arrow(NamedTuple):
    """All edges from the roles of one name to one method of a service, drawn as one arrow.

    `callers`: number of these edges. `carries`: the service's description of the method.
    """

    caller: str
    callers: int
    service: str
    method: str
    carries: Method


class Program:
    """The roles of an architecture, their edges and their processes. Wire it, `check` it, pass it to a runtime."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.roles: list[RoleSpec] = []
        self._named: defaultdict[str, list[RoleSpec]] = defaultdict(list)
        self.notes: list[str] = []
        """What the roles and edges do not show. A run logs these lines when it starts."""

    def at(self, **where: Unpack[PlacementOptions]) -> Placement:
        """Return a placement, to which roles are added; `Placement` documents the arguments."""
        return Placement(program=self, **where)

    def append(self, spec: RoleSpec) -> None:
        """Add a role, whose index is `count` of its name."""
        self.roles.append(spec)
        self._named[spec.role].append(spec)

    def count(self, role: str) -> int:
        """Return the number of roles with this name."""
        return len(self._named[role])

    @property
    def processes(self) -> dict[str, list[RoleSpec]]:
        """The roles of each process, by process name, in the order they were added."""
        processes: dict[str, list[RoleSpec]] = {}
        for spec in self.roles:
            processes.setdefault(spec.process, []).append(spec)
        return processes

    @property
    def weight_holders(self) -> list[tuple[str, int]]:
        """The roles that own the weights: they publish versions and call no other role that does."""
        publishing = {spec.role for spec in self.roles if description_of(spec.kind).publishes}
        return [
            spec.key
            for spec in self.roles
            if spec.role in publishing and not any(edge.service in publishing for edge in spec.edges)
        ]

    @property
    def replicated(self) -> bool:
        """Whether each of the `weight_holders` alone has all weights; otherwise they are complete only together."""
        holders = set(self.weight_holders)
        return all(spec.replicated for spec in self.roles if spec.key in holders)

    @property
    def retained(self) -> frozenset[tuple[tuple[str, int], str]]:
        """The service methods whose last call is sent again after the service restarts."""
        return frozenset(
            (spec.key, name)
            for spec in self.roles
            for name, method in description_of(spec.kind).methods.items()
            if method.retained
        )

    def find(self, role: str, index: int) -> RoleSpec | None:
        """Return the role, or None if it was not added."""
        return next(iter(self._named[role][index : index + 1]), None)

    def incoming(self, role: str, index: int) -> list[tuple[RoleSpec, Edge]]:
        """Return all edges to a role, each with its caller."""
        return [
            (caller, edge)
            for caller in self.roles
            for edge in caller.edges
            if (edge.service, edge.index) == (role, index)
        ]

    def check(self) -> None:
        """Raise a `ThespisError` if the program cannot run or would deadlock; the message says what to change."""
        incoming: dict[tuple[str, int], list[Edge]] = {}
        for spec in self.roles:
            for edge in spec.edges:
                incoming.setdefault((edge.service, edge.index), []).append(edge)
        for spec in self.roles:
            for edge in spec.edges:
                self._check_edge(spec, edge)
            _check_picklable(spec)
            validate = getattr(spec.kind, "validate", None)
            if validate is not None:
                validate(f"{spec.role}", dict(spec.settings), incoming.get(spec.key, []))

    def _check_edge(self, caller: RoleSpec, edge: Edge) -> None:
        service = self.find(edge.service, edge.index)
        if service is None:
            raise ThespisError(f"{self.name}: {caller} calls {edge.service!r} {edge.index}, but no such role was added")
        served = description_of(service.kind).methods
        if not served:
            raise ThespisError(
                f"{self.name}: {caller} calls {service}, which serves no edges; give its class "
                "a `description` with methods, and annotate its builder's return type"
            )
        if edge.method not in served:
            raise ThespisError(
                f"{self.name}: {caller} calls {edge.service}.{edge.method}, "
                f"but {edge.service} only has {', '.join(served)}"
            )

    # -- read by `thespis show` and topology.json -------------------------------------------------

    def arrows(self) -> list[Arrow]:
        """Return each distinct arrow once, with the number of roles that have it."""
        found: Counter[tuple[str, str, str, Method]] = Counter()
        for spec in self.roles:
            for edge in spec.edges:
                service = self.find(edge.service, edge.index)
                carries = description_of(service.kind if service else None).methods[edge.method]
                found[spec.role, edge.service, edge.method, carries] += 1
        return [Arrow(caller, n, service, method, carries) for (caller, service, method, carries), n in found.items()]

    def describe(self) -> dict[str, Any]:
        """Return the graph as plain values, as topology.json stores it."""
        return {
            "program": self.name,
            "roles": {
                spec.role: {"kind": spec.kind and spec.kind.__name__, "evaluates": description_of(spec.kind).evaluates}
                for spec in self.roles
            },
            "processes": {
                process: [{"role": spec.role, "index": spec.index, "restarts": spec.restarts} for spec in specs]
                for process, specs in self.processes.items()
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
            "notes": list(self.notes),
        }


def restart_limit(specs: Sequence[RoleSpec]) -> int:
    """Return how many times a process may restart: the lowest limit among its roles."""
    return min(spec.restarts for spec in specs)


def _check_picklable(spec: RoleSpec) -> None:
    for part in (spec.builder, *spec.args, *spec.settings.values()):
        error = _pickling_error(part)
        if error is None:
            continue
        name = repr(part)
        for setting in walk_settings(part) if is_config(part) else ():
            inner = _pickling_error(setting.value)
            if inner is not None:
                name, error = f"{setting.path} ({setting.value!r})", inner
        raise ThespisError(
            f"{spec}: {name} cannot be sent to another process ({error}); pass a function that builds it instead"
        ) from error


def _pickling_error(value: Any) -> Exception | None:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None
