"""The role context of real time: measured work, and a status page for the watchdog.

An actor measures two sections of work per step, so this is written for speed: one reused object per kind of work, whose
`async with` creates no coroutine unless it has to yield.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import numpy as np

from thespis.core.context import AHEAD, Context, Identity, Report
from thespis.core.types import Array
from thespis.runtime.process import Status
from thespis.transport.arena import Arena
from thespis.transport.calls import PendingReply

_T = TypeVar("_T")

_BLOCK_SECONDS = 0.002
"""How long an exclusive role blocks on a reply before its process serves other events."""
_YIELD_SECONDS, _MOST_YIELD_SECONDS = 0.05, 0.2
"""How long a role may work before its process serves its sockets; this bounds the delay of a stop."""
_COPY_BYTES = 256 * 1024
"""Up to this many bytes, a copy is cheaper than the records of who reads the original."""


class LocalContext(Context):
    """Role context on real time. The status page shows a hanging environment to the supervisor."""

    def __init__(self, identity: Identity, status: Status, thread: bool = False) -> None:
        """`thread`: `run_in_thread` uses a separate thread."""
        super().__init__(identity)
        self.status = status
        self._thread = ThreadPoolExecutor(1, f"{identity}") if thread else None
        self.threaded = thread
        self.yielded = self.now()
        self.yield_seconds = _YIELD_SECONDS
        self._block_seconds = 0.0
        self._kinds: dict[str, _Measured] = {}
        self.arena: Arena | None = None
        """The shared memory of this process for its messages."""

    def set_exclusive(self, report_seconds: float, serves: bool) -> None:
        """Mark the role as the only one of its process, so that blocking delays no other role.

        A role that does not serve calls yields only for reports and stops. With a hundred actors on a few cores,
        yielding more often than they report would cost a tenth of their step time.
        """
        self._block_seconds = _BLOCK_SECONDS
        if not serves:
            self.yield_seconds = min(report_seconds, _MOST_YIELD_SECONDS)

    def now(self) -> float:
        """Return the monotonic time."""
        return time.monotonic()

    def work(self, kind: str, items: int = 1) -> AbstractAsyncContextManager[None]:
        """Measure a section of work."""
        measured = self._kinds.get(kind)
        if measured is None:
            measured = self._kinds[kind] = _Measured(self, kind)
        return measured

    def allocate(self, size: int) -> Array:
        """Return a vector in shared memory, if it is large."""
        large = self.arena is not None and 4 * size > _COPY_BYTES
        block = self.arena.allocate(4 * size) if self.arena is not None and large else None
        return super().allocate(size) if block is None else block.view(np.float32)

    async def run_in_thread(self, kind: str, items: int, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function in the role's thread, if it has one."""
        if self._thread is None:
            return await super().run_in_thread(kind, items, function, *args)
        started = self.now()
        result = await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        self.count_work(kind, self.now() - started)
        return result

    def take_report(self) -> Report:
        """Return the report since the last call."""
        for kind, measured in self._kinds.items():
            if measured.seconds:
                self.count_work(kind, measured.seconds)
                measured.seconds = 0.0
        return super().take_report()

    def poll(self, reply: asyncio.Future[Any]) -> None:
        """Read the connection of a pending reply; an exclusive role blocks briefly."""
        if isinstance(reply, PendingReply) and reply.connection is not None:
            # A call made ahead does not block.
            reply.connection.poll(0.0 if AHEAD.get() else self._block_seconds)

    def locate(self, env: int, episode: int, step: int) -> None:
        """Write the position of an environment to the status page."""
        self.status.locate(env, episode, step)


class _Measured(AbstractAsyncContextManager[None]):
    """A section of work of one kind. A role does one thing at a time, so one object per kind is enough."""

    def __init__(self, ctx: LocalContext, kind: str) -> None:
        self._ctx = ctx
        self.seconds = 0.0
        """Seconds since the last report."""
        self._on_status_page = kind == "env_step"
        self._started = 0.0
        # A finished future can be awaited repeatedly without yielding to the event loop.
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished.set_result(None)

    def __aenter__(self) -> Awaitable[None]:  # type: ignore[override]
        ctx, now = self._ctx, time.monotonic()
        # Yield before the work, not after: its effect and the reply that reports it become visible together.
        if now - ctx.yielded > ctx.yield_seconds:
            ctx.yielded = now
            return self._yield_first()
        self._started = now
        if self._on_status_page:
            ctx.status.begin(now)
        return self._finished

    def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> Awaitable[None]:  # type: ignore[override]
        ctx = self._ctx
        if self._on_status_page:
            ctx.status.end()
        if kind is None:
            self.seconds += time.monotonic() - self._started
        return self._finished

    async def _yield_first(self) -> None:
        await asyncio.sleep(0)
        self._started = time.monotonic()
        if self._on_status_page:
            self._ctx.status.begin(self._started)
