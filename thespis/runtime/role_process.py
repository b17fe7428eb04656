"""The roles of one process: builds them, serves their edges, runs the workers, and reports to the supervisor.

The local and the Ray runtime share this module. They differ in how they start a process, how they send it commands, and
in the connections between processes.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.import_guard import importing
from thespis.core.opaque import from_opaque, to_opaque
from thespis.core.program import RoleSpec
from thespis.core.service import description_of
from thespis.core.step_count import StepCount
from thespis.core.system.memory import available_memory
from thespis.core.watchdog import set_env_status
from thespis.runs.checkpoints import save_role
from thespis.runtime.endpoint import Answered, Endpoint, build, collected, snapshot
from thespis.runtime.local_context import LocalContext
from thespis.runtime.process import Status, peak_memory_mb
from thespis.transport.arena import Arena
from thespis.transport.calls import PendingReply, RemoteCall

_MEMORY_SECONDS = 1.0
"""How often a process reads its memory use, which takes longer than a report."""
_NO_REPLY = 0
"""The number of a call without a reply. Other calls are numbered from 1."""
_COPIED_SHARE = 0.25
"""Maximum share of the free memory for a copy of the saved state."""


@dataclass(frozen=True, slots=True)
class StartCommand:
    """What a process needs to build its roles.

    `processes`: the process of each role. `forwarders`: services that pass payloads on without reading them.
    `retained`: methods whose last call is sent again to a restarted service.
    `restore`: the checkpoint to continue from. `report_seconds`: the interval between two reports.
    """

    path: list[str]
    roles: bytes
    identities: list[Identity]
    processes: dict[tuple[str, int], str]
    forwarders: frozenset[tuple[str, int]]
    retained: frozenset[tuple[tuple[str, int], str]]
    restore: Path | None
    report_seconds: float


class PeerConnection(Protocol):
    """A connection to another process."""

    def send(self, message: Any) -> int:
        """Send without blocking; return the number of bytes transferred."""

    def poll(self, seconds: float = 0.0) -> None:
        """Process messages that have arrived; block up to `seconds` for the first."""


@dataclass(slots=True)
class PendingCall:
    """A call to another process without a reply. `answered` is called with the bytes transferred."""

    process: str
    call: RemoteCall
    reply: PendingReply
    sent: int
    answered: Answered


class RoleProcess:
    """The roles of one process. `report` sends to the supervisor; `exited` is done when the process must exit.

    `address`: where other machines reach this one, on a cluster. `steps`: the step count of all processes, if shared.
    """

    def __init__(
        self,
        report: Callable[[Any], None],
        status: Status,
        address: str | None = None,
        steps: StepCount | None = None,
        arena: Arena | None = None,
    ) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._report, self._status, self._address, self._steps = report, status, address, steps
        self.arena = arena
        """Shared memory for the messages of this process, once it has any."""
        set_env_status(status)
        self._contexts: list[LocalContext] = []
        self._roles: dict[tuple[str, int], Any] = {}
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._processes: dict[tuple[str, int], str] = {}
        self._forwarders: frozenset[tuple[str, int]] = frozenset()
        self._retained: frozenset[tuple[tuple[str, int], str]] = frozenset()
        self._last_calls: dict[tuple[tuple[str, int, int], tuple[str, int], str], RemoteCall] = {}
        self._peers: dict[str, PeerConnection] = {}
        self._callers: defaultdict[PeerConnection, set[tuple[str, int, int]]] = defaultdict(set)
        self._pending: dict[int, PendingCall] = {}
        self._calls = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._cpu = 0.0
        self._memory_read = float("-inf")
        self._rss_mb = 0.0

    def start(self, start: StartCommand) -> None:
        """Build the roles and start the workers. Errors are reported to the supervisor, not raised."""
        loop = asyncio.get_running_loop()
        self._processes, self._forwarders, self._retained = start.processes, start.forwarders, start.retained
        try:
            with importing():
                specs: list[RoleSpec] = pickle.loads(start.roles)
        except Exception as error:
            self.fail("roles", error)
            return
        for spec, identity in zip(specs, start.identities, strict=True):
            try:
                self._build(spec, identity, start)
            except Exception as error:
                self.fail(f"{spec}", error)
                return
        if len(specs) == 1:
            serves = bool(description_of(type(self._roles[specs[0].key])).methods)
            self._contexts[0].set_exclusive(start.report_seconds, serves)
        gc.freeze()  # everything imported and built so far stays alive, so the collector can skip it
        for key, role in self._roles.items():
            if hasattr(role, "run"):
                self._workers.append(loop.create_task(self._work(key, role)))
        self.spawn(self._flush_often(start.report_seconds))

    # -- roles ------------------------------------------------------------------------------------

    def _build(self, spec: RoleSpec, identity: Identity, start: StartCommand) -> None:
        ctx = LocalContext(identity, self._status, spec.thread)
        ctx.address, ctx.steps, ctx.arena = self._address, self._steps, self.arena
        self._roles[spec.key], self._endpoints[spec.key] = build(spec, ctx, self._deliver, start.restore)
        self._contexts.append(ctx)

    async def _work(self, key: tuple[str, int], role: Any) -> None:
        try:
            await role.run()
        except Exception as error:
            self.fail(f"{key[0]} {key[1]}", error)

    def fail(self, who: str, error: BaseException) -> None:
        """Report an error, once, and exit. The supervisor decides whether to restart the process."""
        if self.exited.done():
            return  # a consequence of the first error, such as a call to a role that could not be built
        self.flush()
        if isinstance(error, ThespisError):
            self._report(("error", f"{error}", "", True))
        else:
            text = "".join(traceback.format_exception(error))
            self._report(("error", f"{who}: {type(error).__name__}: {error}", text, False))
        self._exit(1)

    def _exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    # -- edges ------------------------------------------------------------------------------------

    def _deliver(self, call: RemoteCall, edge: str, answered: Answered) -> asyncio.Future[Any]:
        if call.service in self._endpoints:
            return self._serve(call, lambda: answered(0, 0))
        self._calls += 1
        number, process = self._calls, self._processes[call.service]
        if call.service in self._forwarders:
            call = call._replace(args=tuple(map(to_opaque, call.args)))
        if (call.service, call.method) in self._retained:
            self._last_calls[call.caller, call.service, call.method] = call
        connection = self._peers.get(process)
        sent = 0 if connection is None else connection.send((number, call))
        reply = PendingReply(connection)
        self._pending[number] = PendingCall(process, call, reply, sent, answered)
        return reply

    def on_message(self, connection: PeerConnection, message: Any, nbytes: int) -> None:
        """Handle a call from another process, or its reply to a call of this one."""
        number, content = message
        if isinstance(content, RemoteCall):
            self._callers[connection].add(content.caller)
            self._begin(connection, number, content)
            return
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.answered(pending.sent, nbytes)
            if not pending.reply.done():
                pending.reply.set_result(from_opaque(content[0]))

    def _begin(self, connection: PeerConnection, number: int, call: RemoteCall) -> None:
        """Serve a call from another process and send the reply when it is ready."""

        def send(reply: asyncio.Future[Any]) -> None:
            if reply.cancelled():
                return  # the caller is gone
            error = reply.exception()
            if error is None:
                connection.send((number, (reply.result(),)))
            else:
                self.fail(f"{call.service[0]} {call.service[1]}", error)

        try:
            _when_done(self._endpoints[call.service].begin(call), send)
        except Exception as error:
            self.fail(f"{call.service[0]} {call.service[1]}", error)

    def _serve(self, call: RemoteCall, answered: Callable[[], None]) -> asyncio.Future[Any]:
        """Call a role of this process. An error fails that role, not its caller."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finish(reply: asyncio.Future[Any]) -> None:
            answered()
            error = None if reply.cancelled() else reply.exception()
            if error is not None:
                self.fail(f"{call.service[0]} {call.service[1]}", error)
            if result.done():
                return
            if error is not None or reply.cancelled():
                result.cancel()
            else:
                result.set_result(from_opaque(reply.result()))

        try:
            _when_done(self._endpoints[call.service].begin(call), finish)
        except Exception as error:
            self.fail(f"{call.service[0]} {call.service[1]}", error)
            result.cancel()
        return result

    async def serve(self, call: RemoteCall) -> Any:
        """Serve a call that did not arrive over a connection."""
        return await self._serve(call, lambda: None)

    def attach_peer(self, peer: str, connection: PeerConnection) -> None:
        """Use a connection to a new or restarted process; repeat pending and retained calls."""
        self._peers[peer] = connection
        unanswered = [pending.call for pending in self._pending.values()]
        for call in self._last_calls.values():
            if self._processes[call.service] == peer and not any(call is other for other in unanswered):
                connection.send((_NO_REPLY, call))
        for number, pending in self._pending.items():
            if pending.process == peer and not pending.reply.done():  # a cancelled call is not repeated
                pending.reply.connection = connection
                pending.sent += connection.send((number, pending.call))

    def peer_lost(self, connection: PeerConnection) -> None:
        """The peer is gone: cancel the calls of its roles."""
        for caller in self._callers.pop(connection, ()):
            self._cancel_calls(caller)
        for name, peer in list(self._peers.items()):
            if peer is connection:
                del self._peers[name]

    def _cancel_calls(self, caller: tuple[str, int, int]) -> None:
        for endpoint in self._endpoints.values():
            endpoint.lost(caller)

    # -- control ----------------------------------------------------------------------------------

    async def handle_command(self, kind: str, *args: Any) -> Any:
        """Execute a command of the supervisor."""
        try:
            if kind == "halt":
                for worker in self._workers:
                    worker.cancel()
                await asyncio.gather(*self._workers, return_exceptions=True)
            elif kind == "save":
                await self._save(Path(args[0]))
            elif kind == "do":
                key, method, *rest = args
                return await getattr(self._roles[key], method)(*rest)
            elif kind == "gone":
                for caller in args[0]:
                    self._cancel_calls(caller)
            elif kind == "exit":
                await self._close()
            return None
        finally:
            self.flush()

    async def _save(self, folder: Path) -> None:
        """Copy the state of the roles and write it from a thread, so that a large replay keeps serving.

        Without enough memory for a copy, the state is written at once and the roles wait.
        """
        try:
            async with collected(self._roles.values()):
                write = self._write_or_copy(folder)
        except Exception as error:
            self.fail("save", error)
            raise
        if write is not None:
            await asyncio.to_thread(write)

    def _write_or_copy(self, folder: Path) -> Callable[[], None] | None:
        """Copy the state and return a function that writes it; or write it now and return None."""
        states = {
            key: snapshot(role, self._endpoints[key]) for key, role in self._roles.items() if hasattr(role, "state")
        }

        def write() -> None:
            for (name, index), (arrays, values) in states.items():
                save_role(folder, name, index, arrays, values)

        size = sum(array.nbytes for arrays, _ in states.values() for array in arrays.values())
        if size > _COPIED_SHARE * available_memory():
            write()
            return None
        states = {
            key: ({name: array.copy() for name, array in arrays.items()}, values)
            for key, (arrays, values) in states.items()
        }
        return write

    async def _close(self) -> None:
        for role in self._roles.values():
            if hasattr(role, "close"):
                await role.close()

    # -- reports ----------------------------------------------------------------------------------

    async def _flush_often(self, seconds: float) -> None:
        while True:
            self.flush()
            await asyncio.sleep(seconds)

    def flush(self) -> None:
        """Report what the roles did since the last report."""
        reports = [ctx.take_report() for ctx in self._contexts]
        if time.monotonic() - self._memory_read >= _MEMORY_SECONDS:
            self._memory_read, self._rss_mb = time.monotonic(), peak_memory_mb()
        for report in reports:
            report.rss_mb = self._rss_mb
        if reports:
            spent = time.process_time()
            reports[0].cpu_seconds, self._cpu = spent - self._cpu, spent
        self._report(("reports", reports))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task and keep a reference to it; the event loop keeps none."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _when_done(reply: asyncio.Future[Any], use: Callable[[asyncio.Future[Any]], None]) -> None:
    """Call `use` now if the reply is ready, else when it becomes ready."""
    if reply.done():
        use(reply)
    else:
        reply.add_done_callback(use)
