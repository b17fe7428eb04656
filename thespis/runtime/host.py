"""The roles of one process: builds them, serves their edges, runs the workers, and says what happens.

The same under the local and the Ray runtime. Those differ in how a process is started, how it is told what to do, and
in the lines between processes.
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
from thespis.core.importing import importing
from thespis.core.opaque import seal, unseal
from thespis.core.program import RoleSpec
from thespis.core.service import describe
from thespis.core.step_count import StepCount
from thespis.core.system.memory import available_memory
from thespis.core.watch import watch_on
from thespis.runs.checkpoints import save_role
from thespis.runtime.clock import LocalContext
from thespis.runtime.endpoint import Endpoint, build, snapshot
from thespis.runtime.process import Status, peak_memory_mb
from thespis.transport.calls import Call, PendingReply

_WEIGH_SECONDS = 1.0
"""How often a process looks how much memory it has: that takes longer than a report."""
_UNASKED = 0
"""The number of a call whose answer nobody awaits. The others begin at 1."""
_COPIED_SHARE = 0.25
"""Of the memory that is free, a copy of what is saved may take this much."""


@dataclass(frozen=True, slots=True)
class Start:
    """All a process needs to become its roles.

    `homes`: which process serves each role. `forwarders`: services that do not look inside what they are given.
    `retained`: methods whose last call is sent again to a restarted service.
    `restore`: the checkpoint to go on from. `report_seconds`: how often to say what was done.
    """

    path: list[str]
    roles: bytes
    identities: list[Identity]
    homes: dict[tuple[str, int], str]
    forwarders: frozenset[tuple[str, int]]
    retained: frozenset[tuple[tuple[str, int], str]]
    restore: Path | None
    report_seconds: float


class Line(Protocol):
    """One way to another process. `send` never waits and returns how many bytes travelled."""

    def send(self, message: Any) -> int: ...

    def take(self, seconds: float = 0.0) -> None:
        """Take in what has come, if that can be done here; wait so long if nothing has."""


@dataclass(slots=True)
class Pending:
    """A call to another process without an answer yet. `answered` is told how many bytes it took."""

    home: str
    call: Call
    answer: PendingReply
    sent: int
    answered: Callable[[int], None]


class Host:
    """Roles that live together. `tell` says something to the supervisor; `over` is done when it is time to leave.

    `address`: where other machines reach this one, if there are others. `steps`: those of all processes, if known.
    """

    def __init__(
        self,
        tell: Callable[[Any], None],
        status: Status,
        address: str | None = None,
        steps: StepCount | None = None,
    ) -> None:
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tell, self._status, self._address, self._steps = tell, status, address, steps
        watch_on(status)
        self._contexts: list[LocalContext] = []
        self._roles: dict[tuple[str, int], Any] = {}
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._homes: dict[tuple[str, int], str] = {}
        self._forwarders: frozenset[tuple[str, int]] = frozenset()
        self._retained: frozenset[tuple[tuple[str, int], str]] = frozenset()
        self._last_calls: dict[tuple[tuple[str, int, int], tuple[str, int], str], Call] = {}
        self._peers: dict[str, Line] = {}
        self._callers: defaultdict[Line, set[tuple[str, int, int]]] = defaultdict(set)
        self._pending: dict[int, Pending] = {}
        self._calls = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._cpu = 0.0
        self._weighed = float("-inf")
        self._rss_mb = 0.0

    def start(self, start: Start) -> None:
        """Build the roles and let the workers among them run. What goes wrong is told, not raised."""
        loop = asyncio.get_running_loop()
        self._homes, self._forwarders, self._retained = start.homes, start.forwarders, start.retained
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
            serves = bool(describe(type(self._roles[specs[0].key])).methods)
            self._contexts[0].alone(start.report_seconds, serves)
        gc.freeze()  # what is imported and built by now stays, so the collector need not visit it again
        for key, role in self._roles.items():
            if hasattr(role, "run"):
                self._workers.append(loop.create_task(self._work(key, role)))
        self.spawn(self._flush_often(start.report_seconds))

    # -- roles ------------------------------------------------------------------------------------

    def _build(self, spec: RoleSpec, identity: Identity, start: Start) -> None:
        ctx = LocalContext(identity, self._status, spec.thread)
        ctx.address, ctx.steps = self._address, self._steps
        self._roles[spec.key], self._endpoints[spec.key] = build(spec, ctx, self._deliver, start.restore)
        self._contexts.append(ctx)

    async def _work(self, key: tuple[str, int], role: Any) -> None:
        try:
            await role.run()
        except Exception as error:
            self.fail(f"{key[0]} {key[1]}", error)

    def fail(self, who: str, error: BaseException) -> None:
        """Say what went wrong, once, and leave: the supervisor decides what follows."""
        if self.over.done():
            return  # it follows from what went wrong first, such as a call to a role that could not be built
        self.flush()
        if isinstance(error, ThespisError):
            self._tell(("error", f"{error}", "", True))
        else:
            text = "".join(traceback.format_exception(error))
            self._tell(("error", f"{who}: {type(error).__name__}: {error}", text, False))
        self._leave(1)

    def _leave(self, code: int) -> None:
        if not self.over.done():
            self.over.set_result(code)

    # -- edges ------------------------------------------------------------------------------------

    def _deliver(self, call: Call, edge: str, answered: Callable[[int], None]) -> asyncio.Future[Any]:
        if call.service in self._endpoints:
            return self._serve(call, lambda: answered(0))
        self._calls += 1
        number, home = self._calls, self._homes[call.service]
        if call.service in self._forwarders:
            call = call._replace(args=tuple(map(seal, call.args)))
        if (call.service, call.method) in self._retained:
            self._last_calls[call.caller, call.service, call.method] = call
        line = self._peers.get(home)
        sent = 0 if line is None else line.send((number, call))
        answer = PendingReply(line)
        self._pending[number] = Pending(home, call, answer, sent, answered)
        return answer

    def on_message(self, line: Line, message: Any, nbytes: int) -> None:
        """A call of another process, or its answer to one of ours."""
        number, content = message
        if isinstance(content, Call):
            self._callers[line].add(content.caller)
            self._begin(line, number, content)
            return
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.answered(pending.sent + nbytes)
            if not pending.answer.done():
                pending.answer.set_result(unseal(content[0]))

    def _begin(self, line: Line, number: int, call: Call) -> None:
        """Answer a call from another process, now or when there is an answer."""

        def reply(answer: asyncio.Future[Any]) -> None:
            if answer.cancelled():
                return  # the caller is gone
            error = answer.exception()
            if error is None:
                line.send((number, (answer.result(),)))
            else:
                self.fail(f"{call.service[0]} {call.service[1]}", error)

        try:
            _then(self._endpoints[call.service].begin(call), reply)
        except Exception as error:
            self.fail(f"{call.service[0]} {call.service[1]}", error)

    def _serve(self, call: Call, answered: Callable[[], None]) -> asyncio.Future[Any]:
        """The answer of a role of this process; its error is its own, not its caller's."""
        given: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def give(answer: asyncio.Future[Any]) -> None:
            answered()
            error = None if answer.cancelled() else answer.exception()
            if error is not None:
                self.fail(f"{call.service[0]} {call.service[1]}", error)
            if given.done():
                return
            if error is not None or answer.cancelled():
                given.cancel()
            else:
                given.set_result(unseal(answer.result()))

        try:
            _then(self._endpoints[call.service].begin(call), give)
        except Exception as error:
            self.fail(f"{call.service[0]} {call.service[1]}", error)
            given.cancel()
        return given

    async def serve(self, call: Call) -> Any:
        """Answer a call that came by another way than a line."""
        return await self._serve(call, lambda: None)

    def adopt(self, peer: str, line: Line) -> None:
        """Take a line to another process, new or restarted; repeat what it has not answered, and what holds still."""
        self._peers[peer] = line
        unanswered = [pending.call for pending in self._pending.values()]
        for call in self._last_calls.values():
            if self._homes[call.service] == peer and not any(call is other for other in unanswered):
                line.send((_UNASKED, call))
        for number, pending in self._pending.items():
            if pending.home == peer and not pending.answer.done():  # one that was given up is not repeated
                pending.answer.line = line
                pending.sent += line.send((number, pending.call))

    def lost(self, line: Line) -> None:
        """The process at the other end is gone."""
        for caller in self._callers.pop(line, ()):
            self._forget(caller)
        for name, peer in list(self._peers.items()):
            if peer is line:
                del self._peers[name]

    def _forget(self, caller: tuple[str, int, int]) -> None:
        for endpoint in self._endpoints.values():
            endpoint.lost(caller)

    # -- control ----------------------------------------------------------------------------------

    async def obey(self, kind: str, *args: Any) -> Any:
        """Do what the supervisor asks."""
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
                    self._forget(caller)
            elif kind == "exit":
                await self._close()
            return None
        finally:
            self.flush()

    async def _save(self, folder: Path) -> None:
        """Copy what the roles hold at this moment and write it from a thread: a large replay goes on meanwhile.

        Without memory for a copy it is written at once, and everybody waits.
        """
        states = {
            key: snapshot(role, self._endpoints[key]) for key, role in self._roles.items() if hasattr(role, "state")
        }

        def write() -> None:
            for (name, index), (arrays, values) in states.items():
                save_role(folder, name, index, arrays, values)

        size = sum(array.nbytes for arrays, _ in states.values() for array in arrays.values())
        if size > _COPIED_SHARE * available_memory():
            write()
            return
        states = {
            key: ({name: array.copy() for name, array in arrays.items()}, values)
            for key, (arrays, values) in states.items()
        }
        await asyncio.to_thread(write)

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
        reports = [ctx.take_report() for ctx in self._contexts]
        if time.monotonic() - self._weighed >= _WEIGH_SECONDS:
            self._weighed, self._rss_mb = time.monotonic(), peak_memory_mb()
        for report in reports:
            report.rss_mb = self._rss_mb
        if reports:
            spent = time.process_time()
            reports[0].cpu_seconds, self._cpu = spent - self._cpu, spent
        self._tell(("reports", reports))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Keep a reference until it is done; the event loop itself keeps none."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _then(answer: asyncio.Future[Any], use: Callable[[asyncio.Future[Any]], None]) -> None:
    """Use an answer at once if it is there, else when it is."""
    if answer.done():
        use(answer)
    else:
        answer.add_done_callback(use)
