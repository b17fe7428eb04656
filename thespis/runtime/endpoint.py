"""The two ends of an edge, the same under every runtime: `Stub` calls, `Endpoint` answers.

Delivery may happen more than once (a reply can be lost, a connection can be replaced), the effect happens once:
a call carries its caller's incarnation and a sequence number, and the endpoint answers a repeated one from memory.
That memory is part of a service's checkpoint: what it did before a crash is in its state, so it must not be done again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from thespis.core import eager
from thespis.core.context import Asking, Context, Waiting
from thespis.core.program import Edge, RoleSpec
from thespis.core.service import describe
from thespis.core.types import Array
from thespis.runs.checkpoints import load_role
from thespis.transport.calls import Call


class Endpoint:
    """Serves one role's methods to its callers, each call at most once per (caller, incarnation, sequence)."""

    def __init__(self, role: object) -> None:
        self._role = role
        self._methods = frozenset(describe(type(role)).methods)
        self._seen: dict[tuple[str, int], tuple[int, dict[int, asyncio.Future[Any]]]] = {}
        self._earlier: dict[tuple[str, int, int], dict[int, Any]] = {}

    async def answer(self, call: Call) -> Any:
        return await asyncio.shield(self.begin(call))

    def begin(self, call: Call) -> asyncio.Future[Any]:
        """The answer to the call: a new one, or the one it had when it came before."""
        if call.method not in self._methods:
            raise AttributeError(f"{call.service[0]} has no edge {call.method!r}")
        role, index, incarnation = call.caller
        known = self._seen.get((role, index))
        if known is None or known[0] != incarnation:
            if known is not None:
                self.lost((role, index, known[0]))
            known = self._seen[role, index] = (incarnation, {})
        answers = known[1]
        for sequence in [number for number in answers if number < call.settled]:
            del answers[sequence]
        if call.sequence not in answers:
            answers[call.sequence] = eager.begin(self._do(call))
        return answers[call.sequence]

    def _do(self, call: Call) -> asyncio.Future[Any] | Coroutine[Any, Any, Any]:
        earlier = self._earlier.get(call.caller, {})
        if call.sequence in earlier:
            return _known(earlier[call.sequence])
        made: asyncio.Future[Any] | Coroutine[Any, Any, Any] = getattr(self._role, call.method)(*call.args)
        return made

    def state(self) -> list[Any]:
        """What was done for whom and may be asked for again, as JSON values.

        Only plain answers are kept. Others are what a service hands out: it can do so again.
        """
        return [
            [
                role,
                index,
                incarnation,
                {str(sequence): answer.result() for sequence, answer in answers.items() if _plain(answer)},
            ]
            for (role, index), (incarnation, answers) in self._seen.items()
        ]

    def restore(self, state: list[Any]) -> None:
        for role, index, incarnation, answers in state:
            self._earlier[role, index, incarnation] = {int(sequence): answer for sequence, answer in answers.items()}

    def lost(self, caller: tuple[str, int, int]) -> None:
        """This life of a caller is gone: nothing more is done on its behalf, so a batch is not taken for nobody."""
        role, index, incarnation = caller
        known = self._seen.get((role, index))
        if known is not None and known[0] == incarnation:
            del self._seen[role, index]
            _give_up(known[1])

    def close(self) -> None:
        """The role is gone: nobody goes on with what it had begun."""
        for _, answers in self._seen.values():
            _give_up(answers)
        self._seen.clear()


def _give_up(answers: dict[int, asyncio.Future[Any]]) -> None:
    for answer in answers.values():
        answer.cancel()


async def _known(answer: Any) -> Any:
    return answer


def _plain(answer: asyncio.Future[Any]) -> bool:
    done = answer.done() and not answer.cancelled() and answer.exception() is None
    return done and isinstance(answer.result(), int | float | str | None)


class Caller:
    """Numbers one role's calls. Shared by all edges of the role, so the endpoint can tell repeats apart."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._numbers = itertools.count()
        self._open: dict[int, None] = {}
        identity = ctx.identity
        self.key = (identity.role, identity.index, identity.incarnation)

    def open(self, service: tuple[str, int], method: str, args: tuple[Any, ...]) -> Call:
        sequence = next(self._numbers)
        self._open[sequence] = None
        return Call(self.key, sequence, next(iter(self._open)), service, method, args)

    def close(self, call: Call) -> None:
        self._open.pop(call.sequence, None)


Deliver = Callable[[Call, str, Callable[[int], None]], asyncio.Future[Any]]
"""How a runtime delivers a call on the named edge: it begins at once. Told when it is answered: the bytes it took."""


class Stub:
    """What a role holds for an edge: a function with a name, whose calls are awaited or made ahead."""

    __slots__ = ("caller", "deliver", "method", "name", "service")

    def __init__(self, caller: Caller, service: tuple[str, int], method: str, deliver: Deliver) -> None:
        self.caller, self.service, self.method, self.deliver = caller, service, method, deliver
        self.name = f"{caller.ctx.identity.role}.{service[0]}.{method}"

    def __call__(self, *args: Any) -> Asking[Any]:
        return _Asking(self, args)

    def beside(self, method: str) -> Stub:
        """An edge to another method of the same service, for what this one needs to come about."""
        return Stub(self.caller, self.service, method, self.deliver)


class _Asking(Asking[Any]):
    """One call. Its time is booked as waiting where a role awaits it, not if it is made ahead."""

    __slots__ = ("_args", "_call", "_stub")

    def __init__(self, stub: Stub, args: tuple[Any, ...]) -> None:
        self._stub, self._args = stub, args

    def begin(self) -> asyncio.Future[Any]:
        stub = self._stub
        self._call = stub.caller.open(stub.service, stub.method, self._args)
        return stub.deliver(self._call, stub.name, self._answered)

    def _answered(self, nbytes: int) -> None:
        caller = self._stub.caller
        caller.close(self._call)
        caller.ctx.carried(self._stub.name, nbytes)

    def __await__(self) -> Generator[Any, None, Any]:
        ctx = self._stub.caller.ctx
        with Waiting(ctx, self._stub.name):
            answer = self.begin()
            if answer.done():
                yield  # the service lives here and answered at once; still, it is the others' turn
                return answer.result()
            ctx.attend(answer)
            return answer.result() if answer.done() else (yield from answer)


def build(spec: RoleSpec, ctx: Context, deliver: Deliver, restore: Path | None) -> tuple[Any, Endpoint]:
    """Build a role with its edges live, and the endpoint that serves it; put back what a checkpoint holds of both."""
    caller = Caller(ctx)

    def live(part: Any) -> Any:
        if isinstance(part, tuple) and any(isinstance(edge, Edge) for edge in part):
            return tuple(map(live, part))
        return Stub(caller, (part.service, part.index), part.method, deliver) if isinstance(part, Edge) else part

    role = spec.builder(ctx, *map(live, spec.args), **{name: live(part) for name, part in spec.settings.items()})
    endpoint = Endpoint(role)
    forgets = ctx.identity.restarts > 0 and describe(type(role)).forgets
    if restore is not None and hasattr(role, "restore") and not forgets:
        saved = load_role(restore, *spec.key)
        if saved is not None:
            arrays, values = saved
            endpoint.restore(values.pop(_ANSWERED, []))
            role.restore(arrays, values)
    return role, endpoint


def snapshot(role: Any, endpoint: Endpoint) -> tuple[dict[str, Array], dict[str, Any]]:
    """What `build` puts back, for a checkpoint; the arrays are the role's own."""
    arrays, values = role.state()
    return arrays, {**values, _ANSWERED: endpoint.state()}


_ANSWERED = "answered"
