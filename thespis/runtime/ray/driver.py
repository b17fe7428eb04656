"""The driver: places the processes of a program on a cluster and watches them."""

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
from thespis.runtime.direct import TOKEN_BYTES
from thespis.runtime.host import Start
from thespis.runtime.member import Gone
from thespis.runtime.placement import bundles
from thespis.runtime.process import ENVIRONMENT
from thespis.runtime.ray.cluster import cluster, supply
from thespis.runtime.ray.node import ANSWER_SECONDS, RETRY_SECONDS, Place, RayHost, run_digest
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor

_REACH_SECONDS = 30.0
"""How long a process may be out of reach before it counts as lost."""
_LEAVE_SECONDS = 5.0


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
        self._plans = bundles(program, session.cfg)
        self._groups: list[PlacementGroup] = []
        self._slots: dict[str, tuple[PlacementGroup, int]] = {}
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._moved = False

    @property
    def _members(self) -> Mapping[str, RayMember]:
        return self._actors

    def run(self, restore: Path | None) -> dict[str, Any]:
        with cluster(self._session.cfg, sum(plan.cpus for plan in self._plans)):
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
                + f". {supply()}. Ask for less (--actors, --actors-per-node) or add nodes"
            )

    # -- processes --------------------------------------------------------------------------------

    def _start(self, home: str, plan: Start) -> None:
        # What needs nothing goes anywhere.
        where = PlacementGroupSchedulingStrategy(*self._slots[home]) if home in self._slots else "SPREAD"
        specs = self._program.processes[home]
        handle = RayHost.options(  # type: ignore[attr-defined]
            num_cpus=max(spec.cpus for spec in specs),
            num_gpus=max(spec.gpus for spec in specs),
            runtime_env={"env_vars": {**ENVIRONMENT, **_given()}},
            scheduling_strategy=where,
        ).remote(home, self._session.cfg.env_timeout)
        member = self._actors[home] = RayMember(home, handle, plan)
        member.tended = asyncio.get_running_loop().create_task(self._tend(member))

    async def _tend(self, member: RayMember) -> None:
        """Bring a process up, join it to its neighbours, listen to it until it ends."""
        try:
            seen = self._session.run.topology.resolve() if member.name in self._layout.stateful else None
            await self._placed(member)
            # However long it takes to import and build the roles: it has its place, and if it dies or one of its
            # environments hangs, that is told.
            begun = asyncio.ensure_future(_result(member.handle.begin.remote(member.start, self._token, seen)))
            begun.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if nobody waits
            heard = asyncio.ensure_future(self._listen(member))
            try:
                await asyncio.wait({begun, heard}, return_when=asyncio.FIRST_COMPLETED)
                if not heard.done():
                    member.place = await begun
                    self._moved = True
                    await self._join_neighbours(member)
                await heard
            finally:
                begun.cancel()
                heard.cancel()
        except RayActorError as error:
            member.ending = _ending(member, error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            blame = isinstance(cause, ThespisError)
            member.failure = (f"{cause}" if blame else f"{member.name}: {cause}", "" if blame else str(error), blame)
        except ray.exceptions.RayError as error:
            member.failure = (f"{member.name}: {type(error).__name__}: {error}", "", False)
        self._bury(member)

    async def _listen(self, member: RayMember) -> None:
        while member.failure is None:
            self._hear(member, await self._patiently(member))

    async def _patiently(self, member: RayMember) -> list[Any]:
        """What it says next. Out of reach for a moment, it is not yet lost; Ray needs some seconds to be sure."""
        deadline = self._now() + _REACH_SECONDS
        silent = max(_REACH_SECONDS, self._session.cfg.env_timeout) + ANSWER_SECONDS
        while True:
            try:
                said: list[Any] = await asyncio.wait_for(_result(member.handle.watch.remote()), silent)
                return said
            except TimeoutError:
                # Ray does not count a stopped process as lost.
                where = "" if member.place is None else f" (pid {member.place.pid} on node {member.place.ip})"
                member.failure = (f"{member.name}{where} has not answered for {silent:g} s", "", False)
                return []
            except ActorUnavailableError:
                if self._now() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

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

    async def _placed(self, member: RayMember) -> None:
        """Wait until it has a place. A role that has siblings may wait for ever, but not in silence."""
        limit = self._session.cfg.placement_timeout
        coming: asyncio.Task[Any] = asyncio.ensure_future(_result(member.handle.__ray_ready__.remote()))
        done, _ = await asyncio.wait({coming}, timeout=limit)
        if not done:
            (plan,) = (plan for plan in self._plans if member.name in plan.homes)
            what = f"{member.name} has no place after {limit:g} s: {plan.demand}. {supply()}"
            role = member.start.identities[0].role
            if not any(role == other.start.identities[0].role for other in self._actors.values() if other.up):
                self._session.end("error", what, blame_user=True)
            self._session.log(f"{what}; going on without it until there is room")
        await coming

    async def _join_neighbours(self, member: RayMember) -> None:
        """Lines in the directions in which calls go; a direct line serves both, so one side makes it."""
        joins = []
        for name in self._layout.neighbours(member.name):
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
            self._in_background(self._write_topology())
            self._session.monitor.nodes = {
                f"{identity.role} {identity.index}": member.place.ip
                for member in self._actors.values()
                if member.place is not None
                for identity in member.start.identities
            }

    def _places(self) -> dict[str, Any]:
        places = {name: member.place for name, member in self._actors.items() if member.place is not None}
        return {
            "cluster": run_digest(self._token),
            "nodes": {name: place.ip for name, place in places.items()},
            "node_ids": {name: place.node for name, place in places.items()},
            "pids": {name: place.pid for name, place in places.items()},
        }

    async def _ask(self, home: str, kind: str, *args: Any) -> Any:
        member = self._actors[home]
        try:
            result, messages = await _result(member.handle.obey.remote(kind, *args))
        except RayActorError as error:
            raise Gone(f"{home} {_ending(member, error)}") from error
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
