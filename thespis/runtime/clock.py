"""Real time for the roles of a process: measured work, and a status page a watchdog can read.

An actor books two stretches of work per step, so this is written for speed: one object per kind of work, used again and
again, whose `async with` creates no coroutine unless it has to yield.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from thespis.core.context import AHEAD, Context, Identity, Report
from thespis.runtime.process import Status
from thespis.transport.calls import PendingReply

T = TypeVar("T")

_BLOCK_SECONDS = 0.002
"""How long a role that is alone waits for an answer before its process looks at anything else."""
_YIELD_SECONDS, _MOST_YIELD_SECONDS = 0.05, 0.2
"""How long a role may work before the process looks at its sockets: a stop is then never far away."""


class LocalContext(Context):
    """Real time, and a status page on which a hanging environment can be seen from outside."""

    def __init__(self, identity: Identity, status: Status, thread: bool = False) -> None:
        """`thread`: what is done aside is done in a thread."""
        super().__init__(identity)
        self.status = status
        self._thread = ThreadPoolExecutor(1, f"{identity}") if thread else None
        self.yielded = self.now()
        self.yield_seconds = _YIELD_SECONDS
        self._patience = 0.0
        self._kinds: dict[str, _Measured] = {}

    def alone(self, report_seconds: float, serves: bool) -> None:
        """Nobody else lives in this process, so nobody there is kept waiting.

        One that `serves` nobody either has its turns for its reports and for stops. With a hundred actors on a few
        cores each of them reports seldom, and turns that were for nothing would take a tenth of what its steps take.
        """
        self._patience = _BLOCK_SECONDS
        if not serves:
            self.yield_seconds = min(report_seconds, _MOST_YIELD_SECONDS)

    def now(self) -> float:
        return time.monotonic()

    def work(self, kind: str, items: int = 1) -> AbstractAsyncContextManager[None]:
        measured = self._kinds.get(kind)
        if measured is None:
            measured = self._kinds[kind] = _Measured(self, kind)
        return measured

    async def aside(self, kind: str, items: int, function: Callable[..., T], *args: Any) -> T:
        if self._thread is None:
            return await super().aside(kind, items, function, *args)
        started = self.now()
        result = await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        self.worked(kind, self.now() - started)
        return result

    def take_report(self) -> Report:
        for kind, measured in self._kinds.items():
            if measured.seconds:
                self.worked(kind, measured.seconds)
                measured.seconds = 0.0
        return super().take_report()

    def attend(self, answer: asyncio.Future[Any]) -> None:
        if isinstance(answer, PendingReply) and answer.line is not None:
            # Who asks ahead has something else to do meanwhile.
            answer.line.take(0.0 if AHEAD.get() else self._patience)

    def locate(self, env: int, episode: int, step: int) -> None:
        self.status.locate(env, episode, step)


class _Measured(AbstractAsyncContextManager[None]):
    """A stretch of work of one kind. A role does one thing at a time, so one object per kind is enough."""

    def __init__(self, ctx: LocalContext, kind: str) -> None:
        self._ctx = ctx
        self.seconds = 0.0
        """Since the last report."""
        self._watched = kind == "env_step"
        self._started = 0.0
        # What has happened already can be awaited again and again, and takes no turn of the event loop.
        self._at_once: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_once.set_result(None)

    def __aenter__(self) -> Awaitable[None]:  # type: ignore[override]
        ctx, now = self._ctx, time.monotonic()
        # Before the work, not after: what it changed and the answer that says so are then there at the same moment.
        if now - ctx.yielded > ctx.yield_seconds:
            ctx.yielded = now
            return self._in_a_turn()
        self._started = now
        if self._watched:
            ctx.status.begin(now)
        return self._at_once

    def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> Awaitable[None]:  # type: ignore[override]
        ctx = self._ctx
        if self._watched:
            ctx.status.end()
        if kind is None:
            self.seconds += time.monotonic() - self._started
        return self._at_once

    async def _in_a_turn(self) -> None:
        await asyncio.sleep(0)
        self._started = time.monotonic()
        if self._watched:
            self._ctx.status.begin(self._started)
