"""The driver of the Ray runtime: places the processes of a program on a cluster and watches them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.runtime.managed_process import ProcessExited
from thespis.runtime.placement import bundles
from thespis.runtime.process import ENVIRONMENT
from thespis.runtime.ray.cluster import cluster, supply
from thespis.runtime.ray.node import ANSWER_SECONDS, RETRY_SECONDS, NodeAddress, RayRoleProcess, run_digest
from thespis.runtime.role_process import StartCommand
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor
from thespis.transport.accept import TOKEN_BYTES

_REACH_SECONDS = 30.0
"""How long a process may be unreachable before it counts as lost."""
_LEAVE_SECONDS = 5.0


class RayManagedProcess:
    """The driver's view of a process of the program."""

    def __init__(self, name: str, handle: Any, start: StartCommand) -> None:
        self.name, self.handle, self.start = name, handle, start
        self.up = False
        self.failure: tuple[str, str, bool] | None = None
        self.ending = "was lost"
        self.address: NodeAddress | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def callers(self) -> list[tuple[str, int, int]]:
        """The (role, index, incarnation) of its roles."""
        return [(identity.role, identity.index, identity.incarnation) for identity in self.start.identities]

    def kill(self) -> None:
        """Kill the Ray actor."""
        ray.kill(self.handle)


class RaySupervisor(Supervisor):
    """Runs the processes of a program as Ray actors. Ray never restarts them: a restart needs a new identity."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self._actors: dict[str, RayManagedProcess] = {}
        self._bundles = bundles(program, session.cfg)
        self._groups: list[PlacementGroup] = []
        self._slots: dict[str, tuple[PlacementGroup, int]] = {}
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._topology_changed = False

    @property
    def _processes(self) -> Mapping[str, RayManagedProcess]:
        return self._actors

    def run(self, restore: Path | None) -> dict[str, Any]:
        """Run the program on a cluster; at the end, release its resources."""
        with cluster(self._session.cfg, sum(bundle.cpus for bundle in self._bundles)):
            try:
                return super().run(restore)
            finally:
                for group in self._groups:
                    remove_placement_group(group)

    async def _run(self, restore: Path | None) -> dict[str, Any]:
        await self._reserve()
        self._session.came_up(self._now())
        await self._write_topology()
        return await super()._run(restore)

    async def _reserve(self) -> None:
        """Reserve resources for every process, or raise ThespisError with the missing resources."""
        for strategy in ("STRICT_SPREAD", "PACK", "SPREAD"):  # the most restrictive first
            members = [bundle for bundle in self._bundles if bundle.strategy == strategy and bundle.resources]
            if not members:
                continue
            group = placement_group([bundle.resources for bundle in members], strategy=strategy)
            self._groups.append(group)
            for index, bundle in enumerate(members):
                self._slots.update(dict.fromkeys(bundle.processes, (group, index)))
        limit = self._session.cfg.placement_timeout
        waits = [asyncio.to_thread(group.wait, limit) for group in self._groups]
        if not all(await asyncio.gather(*waits)):
            raise ThespisError(
                f"the cluster has no room within {limit:g} s: "
                + "; ".join(bundle.demand for bundle in self._bundles if bundle.resources)
                + f". {supply()}. Ask for less (--actors, --actors-per-node) or add nodes"
            )

    # -- processes --------------------------------------------------------------------------------

    def _start(self, name: str, plan: StartCommand) -> None:
        # A process without a reservation may run on any node.
        where = PlacementGroupSchedulingStrategy(*self._slots[name]) if name in self._slots else "SPREAD"
        specs = self._program.processes[name]
        handle = RayRoleProcess.options(  # type: ignore[attr-defined]
            num_cpus=max(spec.cpus for spec in specs),
            num_gpus=max(spec.gpus for spec in specs),
            runtime_env={"env_vars": {**ENVIRONMENT, **_user_environment()}},
            scheduling_strategy=where,
        ).remote(name, self._session.cfg.env_timeout)
        process = self._actors[name] = RayManagedProcess(name, handle, plan)
        process.task = asyncio.get_running_loop().create_task(self._manage(process))

    async def _manage(self, process: RayManagedProcess) -> None:
        """Start a process, connect it to its neighbours, and receive its messages until it ends."""
        try:
            topology = self._session.run.topology.resolve() if process.name in self._layout.stateful else None
            await self._wait_for_placement(process)
            # No time limit for imports and for building the roles: the process is placed, and `watch` reports a crash
            # or an environment that hangs.
            starting = asyncio.ensure_future(_result(process.handle.begin.remote(process.start, self._token, topology)))
            starting.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark the error as retrieved
            listening = asyncio.ensure_future(self._listen(process))
            try:
                await asyncio.wait({starting, listening}, return_when=asyncio.FIRST_COMPLETED)
                if not listening.done():
                    process.address = await starting
                    self._topology_changed = True
                    await self._join_neighbours(process)
                await listening
            finally:
                starting.cancel()
                listening.cancel()
        except RayActorError as error:
            process.ending = _describe_loss(process, error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            blame = isinstance(cause, ThespisError)
            process.failure = (f"{cause}" if blame else f"{process.name}: {cause}", "" if blame else str(error), blame)
        except ray.exceptions.RayError as error:
            process.failure = (f"{process.name}: {type(error).__name__}: {error}", "", False)
        self._remove(process)

    async def _listen(self, process: RayManagedProcess) -> None:
        while process.failure is None:
            self._on_messages(process, await self._receive(process))

    async def _receive(self, process: RayManagedProcess) -> list[Any]:
        """Receive the next messages. Retry while the process is unreachable: Ray needs seconds to declare it lost."""
        deadline = self._now() + _REACH_SECONDS
        limit = max(_REACH_SECONDS, self._session.cfg.env_timeout) + ANSWER_SECONDS
        while True:
            try:
                messages: list[Any] = await asyncio.wait_for(_result(process.handle.watch.remote()), limit)
                return messages
            except TimeoutError:
                # Ray does not declare a stopped process lost.
                where = "" if process.address is None else f" (pid {process.address.pid} on node {process.address.ip})"
                process.failure = (f"{process.name}{where} has not replied for {limit:g} s", "", False)
                return []
            except ActorUnavailableError:
                if self._now() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def _on_messages(self, process: RayManagedProcess, messages: list[Any]) -> None:
        for message in messages:
            if message[0] == "log":
                self._session.log(f"{process.name} | {message[1].rstrip()}", show=False)
            else:
                self._on_message(process, message)

    def _remove(self, process: RayManagedProcess) -> None:
        with suppress(ray.exceptions.RayError):
            process.kill()
        if self._actors.get(process.name) is process:
            del self._actors[process.name]
        for other in self._actors.values():
            if other.address is not None:
                self._in_background(self._send_gone(other.name, process.callers))
        self._on_ended(process)

    async def _send_gone(self, name: str, callers: list[tuple[str, int, int]]) -> None:
        """Tell a process whose calls to cancel. Its reply carries reports, as that of every command."""
        with suppress(KeyError, RuntimeError):  # the process is lost too
            await self._send_command(name, "gone", callers)

    async def _wait_for_placement(self, process: RayManagedProcess) -> None:
        """Wait until the process is placed. After the time limit, log it; fail only if no process of its role is up."""
        limit = self._session.cfg.placement_timeout
        ready: asyncio.Task[Any] = asyncio.ensure_future(_result(process.handle.__ray_ready__.remote()))
        done, _ = await asyncio.wait({ready}, timeout=limit)
        if not done:
            (bundle,) = (bundle for bundle in self._bundles if process.name in bundle.processes)
            what = (
                f"{process.name} was not placed and started within {limit:g} s: {bundle.demand}. {supply()}. "
                "If the nodes are busy, raise --placement-timeout"
            )
            role = process.start.identities[0].role
            if not any(role == other.start.identities[0].role for other in self._actors.values() if other.up):
                self._session.end("error", what, blame_user=True)
            self._session.log(f"{what}; continuing without it until there is room")
        await ready

    async def _join_neighbours(self, process: RayManagedProcess) -> None:
        """Connect a process to its neighbours. A direct connection serves both directions, so one side opens it."""
        joins = []
        for name in self._layout.neighbours(process.name):
            other = self._actors.get(name)
            if other is None or other.address is None or process.address is None:
                continue  # the neighbour connects when it is up
            same_node = other.address.node == process.address.node
            joins.append(
                process.handle.join.remote(name, other.handle, other.address.rendezvous if same_node else None)
            )
            if not same_node:
                joins.append(other.handle.join.remote(process.name, process.handle, None))
        await asyncio.gather(*map(_result, joins))

    def _watch(self) -> None:
        if self._topology_changed:
            self._topology_changed = False
            self._in_background(self._write_topology())
            self._session.monitor.nodes = {
                f"{identity.role} {identity.index}": process.address.ip
                for process in self._actors.values()
                if process.address is not None
                for identity in process.start.identities
            }

    def _locations(self) -> dict[str, Any]:
        addresses = {name: process.address for name, process in self._actors.items() if process.address is not None}
        return {
            "cluster": run_digest(self._token),
            "nodes": {name: address.ip for name, address in addresses.items()},
            "node_ids": {name: address.node for name, address in addresses.items()},
            "pids": {name: address.pid for name, address in addresses.items()},
        }

    async def _send_command(self, name: str, kind: str, *args: Any) -> Any:
        process = self._actors[name]
        try:
            result, messages = await _result(process.handle.handle_command.remote(kind, *args))
        except RayActorError as error:
            raise ProcessExited(f"{name} {_describe_loss(process, error)}") from error
        except ray.exceptions.RayError as error:
            raise RuntimeError(" ".join(str(error).split())) from error
        self._on_messages(process, messages)
        return result

    async def _dump_stacks(self) -> None:
        for name, process in list(self._actors.items()):
            with suppress(TimeoutError, ray.exceptions.RayError):
                text = await asyncio.wait_for(_result(process.handle.stacks.remote()), _LEAVE_SECONDS)
                self._session.log(f"{name}:\n{text}", show=False)

    def _kill(self) -> None:
        for process in self._actors.values():
            if process.task is not None:
                process.task.cancel()
            with suppress(ray.exceptions.RayError):
                process.kill()
        self._actors.clear()


def _describe_loss(process: RayManagedProcess, error: RayActorError) -> str:
    """Shorten Ray's description of a lost process."""
    account = " ".join(str(error).split())
    where = f" on node {process.address.ip}" if process.address is not None else ""
    if "node has died" in account:
        return f"was lost with its node{where.removeprefix(' on node')}"
    if "unavailable" in account:
        return f"could not be reached{where} for {_REACH_SECONDS:g} s"
    detail = account.partition("Worker exit detail: ")[2] or account.partition("The actor is dead because ")[2]
    return f"was lost{where}: {(detail or account)[:200]}"


async def _result(answer: Awaitable[Any]) -> Any:
    """Await an object reference as a coroutine, as asyncio's functions require."""
    return await answer


def _user_environment() -> dict[str, str]:
    """Return the user's values of the variables in ENVIRONMENT; they take precedence."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
