"""The Ray runtime: the same processes, placed on the nodes of a cluster.

Ray places processes, tells when one is lost, and carries calls between nodes. Two processes on one node talk over a
direct line instead (runtime/direct.py): a Ray call costs about a millisecond of CPU on each side, a direct one 20 us.

    driver   RaySupervisor --asks, watches--> RayHost (a Ray actor) on some node, one per process of the program
    edges    RayHost --direct line--> RayHost on the same node;  RayHost --Ray call--> RayHost elsewhere
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import logging
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, TaskCancelledError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from thespis.config import Experiment
from thespis.errors import ThespisError
from thespis.program import Program
from thespis.runtime import warden
from thespis.runtime.direct import TOKEN_BYTES, Meeting
from thespis.runtime.endpoint import Call
from thespis.runtime.host import Host, Start
from thespis.runtime.process import ENVIRONMENT, Status, status_page
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor
from thespis.runtime.transport import Connection
from thespis.sealed import dump, load

_WATCH_SECONDS = 0.2
"""How often a process is heard. Each time costs a Ray call."""
_RETRY_SECONDS = 0.2
_REACH_SECONDS = 30.0
"""How long a process may be out of reach before it counts as lost."""
_LEAVE_SECONDS = 5.0
_MARK = "THESPIS_RAY"
_RAY_TOKEN = secrets.token_hex(32)
"""For a Ray of our own. One per process, because Ray reads it once per process."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process lives. `meeting`: the address of its direct lines, for processes of the same node."""

    node: str
    ip: str
    pid: int
    meeting: str


# -- on a node ------------------------------------------------------------------------------------


class RayLine:
    """A way to a process on another node: each call is a Ray call, large arrays go through Ray's object store."""

    def __init__(self, host: Host, handle: Any) -> None:
        self._host, self._handle = host, handle

    def send(self, message: Any) -> int:
        number, call = message
        body, buffers = dump(call)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        self._host.spawn(self._carry(number, body, arrays))
        return len(body) + sum(array.nbytes for array in arrays)

    async def _carry(self, number: int, body: bytes, arrays: list[Any]) -> None:
        while True:
            try:
                answer, *buffers = await self._handle.carry.remote(body, *arrays)
                break
            except ActorUnavailableError:
                # It may or may not have got the call; it tells repeated ones by their number.
                await asyncio.sleep(_RETRY_SECONDS)
            except (RayActorError, TaskCancelledError):
                # It is gone, or about to go; the supervisor brings a line to its next life, to repeat the call on.
                return
        nbytes = len(answer) + sum(buffer.nbytes for buffer in buffers)
        self._host.on_message(self, (number, (load(answer, buffers),)), nbytes)


@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload, untyped-decorator, unused-ignore]
class RayHost:
    """A process of the program. Its roles have the main event loop; `watch` answers from a thread of its own."""

    def __init__(self, name: str, env_timeout: float) -> None:
        self._name, self._env_timeout = name, env_timeout
        self._said: deque[Any] = deque()
        self._status = Status(status_page(name))

    async def begin(self, start: Start, token: bytes, topology: Path | None) -> Place:
        """Become the roles. `topology`: a file of the run directory that must be seen from here, with the token."""
        _forward_output(self._said.append)
        # What Ray hands over lies in its object store and is read-only; nothing here writes into a batch.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        if topology is not None and not (topology.exists() and _digest(token) in topology.read_text()):
            raise ThespisError(
                f"{self._name} runs on node {_own_ip()}, which does not see the run directory {topology.parent}; "
                "give --run-dir a path that all nodes share"
            )
        sys.path[:] = [*start.path, *(path for path in sys.path if path not in start.path)]
        loop = asyncio.get_running_loop()
        self._host = host = Host(self._said.append, self._status)
        loop.set_exception_handler(
            lambda _, what: host.fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._meeting = Meeting(self._name, token, host.on_message, host.lost, host.adopt)
        host.spawn(self._meeting.receive())
        host.start(start)
        return Place(ray.get_runtime_context().get_node_id(), _own_ip(), os.getpid(), self._meeting.address)

    async def join(self, peer: str, handle: Any, meeting: str | None) -> None:
        """Take a line to another process: direct if it is on this node and can be reached, else through Ray."""
        line: Connection | RayLine = RayLine(self._host, handle)
        if meeting is not None:
            with suppress(OSError):  # nodes of one machine need not share its sockets
                line = await self._meeting.join(meeting)
        self._host.adopt(peer, line)

    async def carry(self, body: bytes, *arrays: Any) -> tuple[Any, ...]:
        """Answer a call from another node."""
        call: Call = load(body, arrays)
        answer, buffers = dump(await self._host.serve(call))
        return (answer, *(np.frombuffer(buffer, np.uint8) for buffer in buffers))

    async def obey(self, kind: str, *args: Any) -> tuple[Any, list[Any]]:
        """Do what the driver asks; what there is to say by then comes along, for there may be no later."""
        return await self._host.obey(kind, *args), self._take()

    @ray.method(concurrency_group="control")
    async def watch(self) -> list[Any]:
        """What the process has to say since the last time; waits until there is something."""
        for _ in range(round(10.0 / _WATCH_SECONDS)):
            await asyncio.sleep(_WATCH_SECONDS)
            stuck = self._status.stuck(self._env_timeout)
            if stuck is not None:
                return [*self._take(), ("error", f"{self._name.replace('-', ' ')}: EnvError: {stuck}", "", False)]
            if self._said:
                break
        return self._take()

    @ray.method(concurrency_group="control")
    async def stacks(self) -> str:
        """What every thread is doing."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def _take(self) -> list[Any]:
        taken = []
        with suppress(IndexError):  # two threads take from it
            while True:
                taken.append(self._said.popleft())
        return taken


def _digest(token: bytes) -> str:
    """Names a run without giving its token away."""
    return hashlib.sha256(token).hexdigest()


def _own_ip() -> str:
    return str(ray.util.get_node_ip_address())


def _forward_output(tell: Any) -> None:
    """Whatever is printed here, by Python or below it, also goes to the run's log."""
    read, write = os.pipe()
    before = os.dup(2)
    for descriptor in (1, 2):
        os.dup2(write, descriptor)
    os.close(write)

    def forward() -> None:
        while data := os.read(read, 1 << 16):
            os.write(before, data)
            tell(("log", data.decode(errors="replace")))

    threading.Thread(target=forward, daemon=True).start()


# -- the driver -----------------------------------------------------------------------------------


class RayMember:
    """A process of the program, as the driver sees it."""

    def __init__(self, name: str, handle: Any, start: Start) -> None:
        self.name, self.handle, self.start = name, handle, start
        self.up = False
        self.failure: tuple[str, str, bool] | None = None
        self.ending = "was lost"
        self.place: Place | None = None
        self.tended: asyncio.Task[None] | None = None

    @property
    def callers(self) -> list[tuple[str, int, int]]:
        return [(identity.role, identity.index, identity.incarnation) for identity in self.start.identities]

    def kill(self) -> None:
        ray.kill(self.handle)


class RaySupervisor(Supervisor):
    """Processes that are Ray actors. Ray never restarts them by itself: a new life needs a new identity."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self._actors: dict[str, RayMember] = {}
        self._plans = _bundles(program, session.cfg)
        self._groups: list[PlacementGroup] = []
        self._slots: dict[str, tuple[PlacementGroup, int]] = {}
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._moved = False

    @property
    def _members(self) -> Mapping[str, RayMember]:
        return self._actors

    def run(self, restore: Path | None) -> dict[str, Any]:
        with _cluster(self._session.cfg, sum(plan.cpus for plan in self._plans)):
            try:
                return super().run(restore)
            finally:
                for group in self._groups:
                    remove_placement_group(group)

    async def _run(self, restore: Path | None) -> dict[str, Any]:
        await self._reserve()
        self._session.came_up(self._now())
        self._session.topology(self._places())
        return await super()._run(restore)

    async def _reserve(self) -> None:
        """Have the cluster keep room for every process, or say what is missing."""
        for strategy in ("STRICT_SPREAD", "PACK", "SPREAD"):  # the hardest to please comes first
            plans = [plan for plan in self._plans if plan.strategy == strategy and plan.resources]
            if not plans:
                continue
            group = placement_group([plan.resources for plan in plans], strategy=strategy)
            self._groups.append(group)
            for index, plan in enumerate(plans):
                self._slots.update(dict.fromkeys(plan.homes, (group, index)))
        limit = self._session.cfg.placement_timeout
        waits = [asyncio.to_thread(group.wait, limit) for group in self._groups]
        if not all(await asyncio.gather(*waits)):
            raise ThespisError(
                f"the cluster has no room within {limit:g} s: "
                + "; ".join(plan.demand for plan in self._plans if plan.resources)
                + f". {_supply()}. Ask for less (--actors, --actors-per-node) or add nodes"
            )

    # -- processes --------------------------------------------------------------------------------

    def _start(self, home: str, restore: Path | None) -> None:
        # What needs nothing goes anywhere.
        where = PlacementGroupSchedulingStrategy(*self._slots[home]) if home in self._slots else "SPREAD"
        specs = self._program.processes[home]
        handle = RayHost.options(  # type: ignore[attr-defined]
            num_cpus=max(spec.cpus for spec in specs),
            num_gpus=max(spec.gpus for spec in specs),
            runtime_env={"env_vars": {**ENVIRONMENT, **_given()}},
            scheduling_strategy=where,
        ).remote(home, self._session.cfg.env_timeout)
        member = self._actors[home] = RayMember(home, handle, self._plan(home, restore))
        member.tended = asyncio.get_running_loop().create_task(self._tend(member))

    async def _tend(self, member: RayMember) -> None:
        """Bring a process up, join it to its neighbours, listen to it until it ends."""
        try:
            seen = self._session.run.topology.resolve() if member.name in self._keepers else None
            begin = member.handle.begin.remote(member.start, self._token, seen)
            member.place = await self._placed(member, begin)
            self._moved = True
            await self._join_neighbours(member)
            while member.failure is None:
                self._hear(member, await self._patiently(member))
        except RayActorError as error:
            member.ending = _ending(member, error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            blame = isinstance(cause, ThespisError)
            member.failure = (f"{cause}" if blame else f"{member.name}: {cause}", "" if blame else str(error), blame)
        except ray.exceptions.RayError as error:
            member.failure = (f"{member.name}: {type(error).__name__}: {error}", "", False)
        self._bury(member)

    async def _patiently(self, member: RayMember) -> list[Any]:
        """What it says next. Out of reach for a moment, it is not yet lost; Ray needs some seconds to be sure."""
        deadline = self._now() + _REACH_SECONDS
        while True:
            try:
                said: list[Any] = await member.handle.watch.remote()
                return said
            except ActorUnavailableError:
                if self._now() > deadline:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    def _hear(self, member: RayMember, messages: list[Any]) -> None:
        for message in messages:
            if message[0] == "log":
                self._session.log(f"{member.name} | {message[1].rstrip()}", show=False)
            else:
                self._on_message(member, message)

    def _bury(self, member: RayMember) -> None:
        with suppress(ray.exceptions.RayError):
            member.kill()
        if self._actors.get(member.name) is member:
            del self._actors[member.name]
        for other in self._actors.values():
            if other.place is not None:
                other.handle.obey.remote("gone", member.callers)
        self._on_gone(member)

    async def _placed(self, member: RayMember, begin: Awaitable[Place]) -> Place:
        """Where it came to live. A role that has siblings may wait for room for ever, but not in silence."""
        limit = self._session.cfg.placement_timeout
        coming: asyncio.Task[Place] = asyncio.ensure_future(_result(begin))
        done, _ = await asyncio.wait({coming}, timeout=limit)
        if not done:
            (plan,) = (plan for plan in self._plans if member.name in plan.homes)
            what = f"{member.name} has no place after {limit:g} s: {plan.demand}. {_supply()}"
            role = member.start.identities[0].role
            if not any(role == other.start.identities[0].role for other in self._actors.values() if other.up):
                self._session.end("error", what, blame_user=True)
            self._session.log(f"{what}; going on without it until there is room")
        return await coming

    async def _join_neighbours(self, member: RayMember) -> None:
        """Lines in the directions in which calls go; a direct line serves both, so one side makes it."""
        joins = []
        for name in self._neighbours(member.name):
            other = self._actors.get(name)
            if other is None or other.place is None or member.place is None:
                continue  # it will join us when it is up
            near = other.place.node == member.place.node
            joins.append(member.handle.join.remote(name, other.handle, other.place.meeting if near else None))
            if not near:
                joins.append(other.handle.join.remote(member.name, member.handle, None))
        await asyncio.gather(*map(_result, joins))

    def _watch(self) -> None:
        if self._moved:
            self._moved = False
            self._session.topology(self._places())
            self._session.monitor.nodes = {
                f"{identity.role} {identity.index}": member.place.ip
                for member in self._actors.values()
                if member.place is not None
                for identity in member.start.identities
            }

    def _places(self) -> dict[str, Any]:
        places = {name: member.place for name, member in self._actors.items() if member.place is not None}
        return {
            "cluster": _digest(self._token),
            "nodes": {name: place.ip for name, place in places.items()},
            "node_ids": {name: place.node for name, place in places.items()},
            "pids": {name: place.pid for name, place in places.items()},
        }

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        member = self._actors[home]
        try:
            result, messages = await _result(member.handle.obey.remote(kind, *args))
        except ray.exceptions.RayError as error:
            raise RuntimeError(" ".join(str(error).split())) from error
        self._hear(member, messages)
        return result

    async def _dump_stacks(self) -> None:
        for name, member in list(self._actors.items()):
            with suppress(TimeoutError, ray.exceptions.RayError):
                text = await asyncio.wait_for(_result(member.handle.stacks.remote()), _LEAVE_SECONDS)
                self._session.log(f"{name}:\n{text}", show=False)

    def _kill(self) -> None:
        for member in self._actors.values():
            if member.tended is not None:
                member.tended.cancel()
            with suppress(ray.exceptions.RayError):
                member.kill()
        self._actors.clear()


def _ending(member: RayMember, error: RayActorError) -> str:
    """Ray's account of a loss, in a few words."""
    account = " ".join(str(error).split())
    where = f" on node {member.place.ip}" if member.place is not None else ""
    if "node has died" in account:
        return f"was lost with its node{where.removeprefix(' on node')}"
    if "unavailable" in account:
        return f"could not be reached{where} for {_REACH_SECONDS:g} s"
    detail = account.partition("Worker exit detail: ")[2] or account.partition("The actor is dead because ")[2]
    return f"was lost{where}: {(detail or account)[:200]}"


async def _result(answer: Awaitable[Any]) -> Any:
    """An object reference as a coroutine, which asyncio's tools can take."""
    return await answer


def _given() -> dict[str, str]:
    """Of what the environment says about threads and memory, that which a user has set has the last word."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


# -- placement ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bundle:
    """Processes that are put on one node together, and what they need there."""

    homes: tuple[str, ...]
    cpus: float
    gpus: float
    strategy: str

    @property
    def resources(self) -> dict[str, float]:
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}

    @property
    def demand(self) -> str:
        what = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"{', '.join(self.homes)} ask{'s' if len(self.homes) == 1 else ''} for {what} on one node"


def _bundles(program: Program, cfg: Experiment) -> list[Bundle]:
    """Roles that are near each other share a bundle; the others have one each, spread over the nodes."""
    together: dict[tuple[str, str], list[str]] = {}
    actors = 0
    for home, specs in program.processes.items():
        near = next((spec.near for spec in specs if spec.near is not None), None)
        if near is not None:
            key = "PACK", f"near {near}"
        elif cfg.actors_per_node is not None and specs[0].role == "actor":
            key = "STRICT_SPREAD", f"actors {actors // cfg.actors_per_node}"
            actors += 1
        else:
            key = "SPREAD", home
        together.setdefault(key, []).append(home)
    needs = {
        home: (max(spec.cpus for spec in specs), max(spec.gpus for spec in specs))
        for home, specs in program.processes.items()
    }
    return [
        Bundle(tuple(homes), sum(needs[home][0] for home in homes), sum(needs[home][1] for home in homes), strategy)
        for (strategy, _), homes in together.items()
    ]


def _supply() -> str:
    """What the cluster has, for an error message."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    per_node = [
        f"{node['NodeManagerAddress']} {node['Resources'].get('CPU', 0):g} CPU"
        + (f" {node['Resources']['GPU']:g} GPU" if node["Resources"].get("GPU") else "")
        for node in nodes
    ]
    free = ray.available_resources()
    return f"The cluster has {', '.join(per_node)}; free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"


# -- the cluster ----------------------------------------------------------------------------------


@contextmanager
def _cluster(cfg: Experiment, cpus: float) -> Iterator[None]:
    """The user's cluster, the one this process has joined already, or a Ray of our own for the time of the run."""
    if ray.is_initialized():
        yield
    elif cfg.ray_address is not None:
        _knock(cfg.ray_address)
        _connect(address=cfg.ray_address)
        try:
            yield
        finally:
            ray.shutdown()
    else:
        with _own_ray(max(os.cpu_count() or 1, math.ceil(cpus))):
            yield


@contextmanager
def _own_ray(cpus: int) -> Iterator[None]:
    """A Ray for the time of the run, without dashboard, which answers only to those who know its token."""
    base = tempfile.gettempdir()
    # Ray puts sockets there, and the name of a socket has 107 characters at most.
    directory = Path(tempfile.mkdtemp(prefix="thespis-ray-", dir=base if len(base) < 25 else "/tmp"))
    before = {name: os.environ.pop(name, None) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", _MARK)}
    # Left to itself, a local Ray demands a token, and takes it from here.
    os.environ |= {"RAY_AUTH_TOKEN": _RAY_TOKEN, _MARK: directory.name}
    with _warden(f"{_MARK}={directory.name}", directory):
        try:
            _connect(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                _temp_dir=str(directory),
            )
            yield
        finally:
            ray.shutdown()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextmanager
def _warden(mark: str, directory: Path) -> Iterator[None]:
    """Whatever becomes of this process, those with the mark or the directory end with it.

    Ray's own processes notice that their driver was killed too, but some of them only after half a minute.
    """
    environment = {name: value for name, value in os.environ.items() if name != _MARK}
    guard = subprocess.Popen(
        [sys.executable, "-S", warden.__file__, mark, str(directory)],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate()


def _knock(address: str) -> None:
    """Ray itself takes two minutes to give up on an address where nobody listens."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError) as error:
        raise ThespisError(
            f"--ray-address {address}: no Ray answers there ({error}); give HOST:PORT or auto"
        ) from error


def _connect(**where: Any) -> None:
    try:
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray.init(**where, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises a dozen kinds, among them RuntimeError
        raise ThespisError(f"Ray at {where['address']} cannot be reached: {' '.join(str(error).split())}") from error
