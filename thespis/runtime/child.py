"""A process of the local runtime: builds its roles, serves their edges, runs its workers, says what happens.

It is told everything over its control socket, and leaves when that socket closes.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from thespis.errors import ThespisError
from thespis.program import RoleSpec
from thespis.runs.checkpoints import save_role
from thespis.runtime.clock import LocalContext
from thespis.runtime.context import Context, Identity
from thespis.runtime.control import Control
from thespis.runtime.endpoint import Call, Endpoint, build
from thespis.runtime.process import Status, die_with_parent
from thespis.runtime.transport import Arena, Connection, PeerArena
from thespis.sealed import seal, unseal

_FLUSH_SECONDS = 0.05
"""How stale the supervisor's numbers may be: it decides when to stop from them."""


@dataclass(frozen=True, slots=True)
class Start:
    """All a child needs to become its roles.

    `homes`: which process serves each role. `forwarders`: services that do not look inside what they are given.
    """

    path: list[str]
    roles: bytes
    identities: list[Identity]
    homes: dict[tuple[str, int], str]
    forwarders: frozenset[tuple[str, int]]
    restore: Path | None


class Host:
    """The roles of this process and their lines to the others."""

    def __init__(self, control: Control, arena: int, status: int) -> None:
        self._control = control
        self._arena = Arena(arena)
        self._status = Status(status)
        self._contexts: list[Context] = []
        self._roles: dict[tuple[str, int], Any] = {}
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._homes: dict[tuple[str, int], str] = {}
        self._forwarders: frozenset[tuple[str, int]] = frozenset()
        self._peers: dict[str, Connection] = {}
        self._callers: dict[Connection, set[tuple[str, int, int]]] = {}
        self._pending: dict[int, tuple[str, Call, asyncio.Future[tuple[Any, int]]]] = {}
        self._calls = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._over = asyncio.get_running_loop().create_future()

    async def run(self, start: Start) -> int:
        """Live until told to exit; return the exit code."""
        loop = asyncio.get_running_loop()
        # Nothing may fail in silence: an error in a callback is the process's error.
        loop.set_exception_handler(
            lambda _, what: self._fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._control.listen(loop, self._on_control)
        self._homes, self._forwarders = start.homes, start.forwarders
        specs: list[RoleSpec] = pickle.loads(start.roles)
        for spec, identity in zip(specs, start.identities, strict=True):
            try:
                self._build(spec, identity, start.restore)
            except Exception as error:
                self._fail(f"{spec}", error)
                return 1
        for key, role in self._roles.items():
            if hasattr(role, "run"):
                self._workers.append(loop.create_task(self._work(key, role)))
        self._spawn(self._flush_often())
        code: int = await self._over
        return code

    # -- roles ------------------------------------------------------------------------------------

    def _build(self, spec: RoleSpec, identity: Identity, restore: Path | None) -> None:
        ctx = LocalContext(identity, self._status)
        role = build(spec, ctx, self._deliver, restore)
        self._contexts.append(ctx)
        self._roles[spec.key] = role
        self._endpoints[spec.key] = Endpoint(role)

    async def _work(self, key: tuple[str, int], role: Any) -> None:
        try:
            await role.run()
        except Exception as error:
            self._fail(f"{key[0]} {key[1]}", error)

    def _fail(self, who: str, error: BaseException) -> None:
        """Say what went wrong, once, and leave: the supervisor decides what follows."""
        self._flush()
        if isinstance(error, ThespisError):
            self._control.send(("error", f"{error}", "", True))
        else:
            text = "".join(traceback.format_exception(error))
            self._control.send(("error", f"{who}: {type(error).__name__}: {error}", text, False))
        self._leave(1)

    def _leave(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    # -- edges ------------------------------------------------------------------------------------

    async def _deliver(self, call: Call, edge: str) -> tuple[Any, int]:
        if call.service in self._endpoints:
            return unseal(await self._serve(call)), 0
        future: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()
        self._calls += 1
        number, home = self._calls, self._homes[call.service]
        if call.service in self._forwarders:
            call = call._replace(args=tuple(map(seal, call.args)))
        self._pending[number] = (home, call, future)
        try:
            sent = self._peers[home].send((number, call)) if home in self._peers else 0
            answer, received = await future
        finally:
            del self._pending[number]
        return unseal(answer), sent + received

    def _on_message(self, connection: Connection, message: Any, nbytes: int) -> None:
        number, content = message
        if isinstance(content, Call):
            self._callers[connection].add(content.caller)
            self._begin(connection, number, content)
        elif number in self._pending and not self._pending[number][2].done():
            self._pending[number][2].set_result((content[0], nbytes))

    def _begin(self, connection: Connection, number: int, call: Call) -> None:
        """Start answering a call from another process: one task per call, for services do little else."""

        def reply(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                return  # the caller is gone
            error = task.exception()
            if error is None:
                connection.send((number, (task.result(),)))
            else:
                self._fail(f"{call.service[0]} {call.service[1]}", error)

        try:
            self._endpoints[call.service].begin(call).add_done_callback(reply)
        except Exception as error:
            self._fail(f"{call.service[0]} {call.service[1]}", error)

    async def _serve(self, call: Call) -> Any:
        """The answer of a role of this process; its error is its own, not its caller's."""
        try:
            return await self._endpoints[call.service].answer(call)
        except Exception as error:
            self._fail(f"{call.service[0]} {call.service[1]}", error)
            raise asyncio.CancelledError from None

    async def _join(self, peer: str, descriptors: list[int]) -> None:
        """Take a line to another process, new or restarted, and repeat what it has not answered."""
        sock, arena = descriptors
        peer_arena = PeerArena(arena)
        os.close(arena)
        connection = Connection(self._arena, peer_arena, self._on_message, self._on_lost)
        self._callers[connection] = set()
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=socket.socket(fileno=sock))
        self._peers[peer] = connection
        for number, (home, call, _) in self._pending.items():
            if home == peer:
                connection.send((number, call))

    def _on_lost(self, connection: Connection) -> None:
        for caller in self._callers.pop(connection, ()):
            for endpoint in self._endpoints.values():
                endpoint.lost(caller)
        for name, peer in list(self._peers.items()):
            if peer is connection:
                del self._peers[name]

    # -- control ----------------------------------------------------------------------------------

    def _on_control(self, message: Any, descriptors: list[int]) -> None:
        if message is None:
            os._exit(1)  # the supervisor is gone
        kind, *rest = message
        if kind == "peer":
            self._spawn(self._join(rest[0], descriptors))
        else:
            self._spawn(self._obey(kind, *rest))

    async def _obey(self, kind: str, number: int, *args: Any) -> None:
        """Do what the supervisor asks, and answer with (number, result, error)."""
        result, error = None, None
        try:
            if kind == "halt":
                for worker in self._workers:
                    worker.cancel()
                await asyncio.gather(*self._workers, return_exceptions=True)
            elif kind == "save":
                self._save(Path(args[0]))
            elif kind == "do":
                key, method, *rest = args
                result = await getattr(self._roles[key], method)(*rest)
            elif kind == "exit":
                await self._close()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._flush()
        self._control.send(("answer", number, result, error))
        if kind == "exit":
            self._leave(0)

    def _save(self, staging: Path) -> None:
        for (name, index), role in self._roles.items():
            if hasattr(role, "state"):
                save_role(staging, name, index, *role.state())

    async def _close(self) -> None:
        for role in self._roles.values():
            if hasattr(role, "close"):
                await role.close()

    # -- reports ----------------------------------------------------------------------------------

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            self._flush()

    def _flush(self) -> None:
        reports = [ctx.take_report() for ctx in self._contexts]
        # The peak, not the present size: it is one cheap call, and the peak is what must fit.
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for report in reports:
            report.rss_mb = resident
        self._control.send(("reports", reports))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Keep a reference until it is done; the event loop itself keeps none."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _live(control: Control, arena: int, status: int, start: Start) -> int:
    return await Host(control, arena, status).run(start)


def main(arguments: list[str]) -> int:
    control_fd, arena, status, parent = map(int, arguments)
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    control = Control(socket.socket(fileno=control_fd))
    (_, start), _ = control.receive_one()
    sys.path[:] = start.path
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(control, arena, status, start))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Past the interpreter's own teardown: torch and some environments take a second to unload, or crash in it.
    os._exit(code)
