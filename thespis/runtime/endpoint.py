"""The two ends of an edge under every runtime: `Stub` calls, `Endpoint` answers.

Delivery is at least once (a reply can be lost, a connection can be replaced); the effect is exactly once. A call
carries its caller's incarnation and a sequence number, and the endpoint answers a repeated call from stored replies.
These are part of a service's checkpoint: the restored state includes the effect of the calls, so they must not run
again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from thespis.core import eager_call
from thespis.core.context import Context, LazyCall, Waiting
from thespis.core.program import Edge, RoleSpec, edges_in
from thespis.core.service import description_of
from thespis.core.types import Array
from thespis.runs.checkpoints import load_role, newest_replica
from thespis.transport.calls import RemoteCall

_T = TypeVar("_T")


class Endpoint:
    """Serves a role's methods. Each (caller, incarnation, sequence) is executed at most once."""

    def __init__(self, role: object) -> None:
        self._role = role
        self._methods = frozenset(description_of(type(role)).methods)
        self._seen: dict[tuple[str, int], tuple[int, dict[int, asyncio.Future[Any]]]] = {}
        self._restored: dict[tuple[str, int, int], dict[int, Any]] = {}

    async def answer(self, call: RemoteCall) -> Any:
        """Serve a call and wait for its reply. Cancelling the wait does not cancel the call."""
        return await asyncio.shield(self.begin(call))

    def begin(self, call: RemoteCall) -> asyncio.Future[Any]:
        """Start a call and return its future reply; for a repeated call, the restored reply."""
        if call.method not in self._methods:
            raise AttributeError(f"{call.service[0]} has no edge {call.method!r}")
        role, index, incarnation = call.caller
        known = self._seen.get((role, index))
        if known is None or known[0] != incarnation:
            if known is not None:
                self.lost((role, index, known[0]))
            known = self._seen[role, index] = (incarnation, {})
            for caller in [key for key in self._restored if key[:2] == (role, index) and key != call.caller]:
                del self._restored[caller]
        answers = known[1]
        _drop_settled(answers, call.settled)
        if self._restored:
            _drop_settled(self._restored.get(call.caller, {}), call.settled)
        if call.sequence not in answers:
            answers[call.sequence] = eager_call.begin(self._execute(call))
        return answers[call.sequence]

    def _execute(self, call: RemoteCall) -> asyncio.Future[Any] | Coroutine[Any, Any, Any]:
        restored = self._restored.get(call.caller, {})
        if call.sequence in restored:
            return _return(restored[call.sequence])
        made: asyncio.Future[Any] | Coroutine[Any, Any, Any] = getattr(self._role, call.method)(*call.args)
        return made

    def state(self) -> list[Any]:
        """Return the stored replies of each caller, as JSON values.

        Only plain replies are saved. Other replies are data that a service can return again. A restored reply is saved
        again until its caller has settled it: a caller that was stopped repeats its call only later.
        """
        kept = {caller: dict(answers) for caller, answers in self._restored.items()}
        for (role, index), (incarnation, answers) in self._seen.items():
            plain = {sequence: answer.result() for sequence, answer in answers.items() if _plain(answer)}
            kept[role, index, incarnation] = kept.get((role, index, incarnation), {}) | plain
        return [[*caller, {str(sequence): answer for sequence, answer in kept[caller].items()}] for caller in kept]

    def restore(self, state: list[Any]) -> None:
        """Load what `state` returned."""
        for role, index, incarnation, answers in state:
            self._restored[role, index, incarnation] = {int(sequence): answer for sequence, answer in answers.items()}

    def lost(self, caller: tuple[str, int, int]) -> None:
        """The caller died: cancel its pending calls, so that no batch is popped for it."""
        role, index, incarnation = caller
        known = self._seen.get((role, index))
        if known is not None and known[0] == incarnation:
            del self._seen[role, index]
            _cancel(known[1])

    def close(self) -> None:
        """The role is gone: cancel all pending calls."""
        for _, answers in self._seen.values():
            _cancel(answers)
        self._seen.clear()


def _drop_settled(answers: dict[int, Any], settled: int) -> None:
    for sequence in [number for number in answers if number < settled]:
        del answers[sequence]


def _cancel(answers: dict[int, asyncio.Future[Any]]) -> None:
    for answer in answers.values():
        answer.cancel()


async def _return(answer: Any) -> Any:
    return answer


def _plain(answer: asyncio.Future[Any]) -> bool:
    done = answer.done() and not answer.cancelled() and answer.exception() is None
    return done and isinstance(answer.result(), int | float | str | None)


class Caller:
    """Numbers the calls of one role. All edges of the role share it, so endpoints can recognise repeated calls."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._numbers = itertools.count()
        self._open: dict[int, None] = {}
        identity = ctx.identity
        self.key = (identity.role, identity.index, identity.incarnation)

    def open(self, service: tuple[str, int], method: str, args: tuple[Any, ...]) -> RemoteCall:
        """Number a new call."""
        sequence = next(self._numbers)
        self._open[sequence] = None
        return RemoteCall(self.key, sequence, next(iter(self._open)), service, method, args)

    def close(self, call: RemoteCall) -> None:
        """Mark a call as answered."""
        self._open.pop(call.sequence, None)


Answered = Callable[[int, int], None]
"""Receives the bytes of a call and of its reply, when the reply is there."""
Deliver = Callable[[RemoteCall, str, Answered], asyncio.Future[Any]]
"""Starts a call on the named edge at once."""


class Stub:
    """A role's handle of an edge: a named function whose calls are awaited or made ahead."""

    __slots__ = ("caller", "deliver", "method", "name", "service")

    def __init__(self, caller: Caller, service: tuple[str, int], method: str, deliver: Deliver) -> None:
        self.caller, self.service, self.method, self.deliver = caller, service, method, deliver
        self.name = f"{caller.ctx.identity.role}.{service[0]}.{method}"

    def __call__(self, *args: Any) -> LazyCall[Any]:
        return _LazyCall(self, args)

    def sibling(self, method: str) -> Stub:
        """Return an edge to another method of the same service."""
        return Stub(self.caller, self.service, method, self.deliver)


class _LazyCall(LazyCall[Any]):
    """One call. Its time counts as waiting if a role awaits it, not if it is made ahead."""

    __slots__ = ("_args", "_call", "_stub")

    def __init__(self, stub: Stub, args: tuple[Any, ...]) -> None:
        self._stub, self._args = stub, args

    def begin(self) -> asyncio.Future[Any]:
        stub = self._stub
        self._call = stub.caller.open(stub.service, stub.method, self._args)
        return stub.deliver(self._call, stub.name, self._answered)

    def _answered(self, sent: int, received: int) -> None:
        caller = self._stub.caller
        caller.close(self._call)
        caller.ctx.count_traffic(self._stub.name, sent + received, sent)

    def __await__(self) -> Generator[Any, None, Any]:
        ctx = self._stub.caller.ctx
        with Waiting(ctx, self._stub.name):
            answer = self.begin()
            if answer.done():
                yield  # a service in this process replied at once; yield to the other roles
                return answer.result()
            ctx.poll(answer)
            return answer.result() if answer.done() else (yield from answer)


def build(spec: RoleSpec, ctx: Context, deliver: Deliver, restore: Path | None) -> tuple[Any, Endpoint]:
    """Build a role with its stubs and its endpoint; restore both from a checkpoint if given."""
    caller = Caller(ctx)

    def connect(part: Any) -> Any:
        if isinstance(part, Edge):
            return Stub(caller, (part.service, part.index), part.method, deliver)
        if not edges_in(part):
            return part
        parts = map(connect, part)
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)

    role = spec.builder(ctx, *map(connect, spec.args), **{name: connect(part) for name, part in spec.settings.items()})
    endpoint = Endpoint(role)
    forgets = ctx.identity.restarts > 0 and description_of(type(role)).forgets
    if restore is not None and hasattr(role, "restore") and not forgets:
        index = newest_replica(restore, *spec.key) if spec.replicated else spec.index
        saved = load_role(restore, spec.role, index)
        if saved is not None:
            arrays, values = saved
            endpoint.restore(values.pop(_ANSWERED, []))
            role.restore(arrays, values)
    return role, endpoint


@asynccontextmanager
async def collected(roles: Iterable[Any]) -> AsyncIterator[None]:
    """Let roles whose state is in several processes collect it; `snapshot` works within this block."""
    async with AsyncExitStack() as stack:
        for role in roles:
            if hasattr(role, "collected"):
                await stack.enter_async_context(role.collected())
        yield


def save_collected(
    loop: asyncio.AbstractEventLoop,
    roles: Sequence[Any],
    save: Callable[[], _T | None],
    failed: Callable[[Exception], None],
) -> _T | None:
    """Return `save()`, called when all roles have collected their state. The loop runs only if a role needs that."""

    async def collect_and_save() -> _T | None:
        async with collected(roles):
            return save()

    if not any(hasattr(role, "collected") for role in roles):
        return save()
    try:
        return loop.run_until_complete(collect_and_save())
    except asyncio.CancelledError:
        failed(RuntimeError("a role ended while its state was collected"))
    except Exception as error:
        failed(error)
    return None


def snapshot(role: Any, endpoint: Endpoint) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the state that `build` restores. The arrays are not copied."""
    arrays, values = role.state()
    return arrays, {**values, _ANSWERED: endpoint.state()}


_ANSWERED = "answered"
