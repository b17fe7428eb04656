"""Synchronous code that waits for edges in its middle, such as a forward pass through layers in another process.

The code runs in a thread. When it needs an edge, the thread blocks and the event loop makes the call:

    event loop:  run(function) ......... await edge(...) ...............................> result
    thread:                    function --^           ^-- reply --> rest of the function --^
"""

from __future__ import annotations

import asyncio
import queue
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from thespis.core.context import Context

_T = TypeVar("_T")
_Work = Callable[[], Awaitable[Any]]


class Abandoned(Exception):
    """The call of a function failed or was cancelled, so the function's result is not needed."""


@dataclass(slots=True)
class _Run:
    """One running function: what its thread asks for, and the replies. None says that the function has ended."""

    post: Callable[[_Work | None], None]
    replies: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)


class BlockingCalls:
    """Runs functions, one at a time, that call `wait_for`.

    The event loop blocks while the function computes, as it does without a thread. So nothing depends on the timing of
    threads, and a simulation stays deterministic. With `threaded` the other roles of the process continue.
    """

    def __init__(self, ctx: Context, threaded: bool = False) -> None:
        """`threaded`: the event loop continues, as it does with `ctx.threaded`. Functions that block need it."""
        self._threaded = threaded or ctx.threaded
        self._thread = ThreadPoolExecutor(1, f"{ctx.identity}")
        self._run: _Run | None = None

    async def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Return `function(*args)`. If this call is cancelled, `wait_for` raises in the function, which thus ends."""
        loop = asyncio.get_running_loop()
        if self._threaded:
            ready: asyncio.Queue[_Work | None] = asyncio.Queue()
            run = _Run(lambda work: _post(loop, ready, work))
            return await self._serve(run, self._thread.submit(self._execute, run, function, args), ready.get)
        posted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()

        async def next_work() -> _Work | None:
            return posted.get()

        run = _Run(posted.put)
        return await self._serve(run, self._thread.submit(self._execute, run, function, args), next_work)

    def wait_for(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Await `work()` in the event loop and return its result. Only a function that `run` runs may call this."""
        if self._run is None:
            raise RuntimeError("this network is divided over several processes, so only its learner can use it")
        self._run.post(work)
        reply = self._run.replies.get()
        if isinstance(reply, Abandoned):
            raise reply
        result: _T = reply
        return result

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    async def _serve(self, run: _Run, running: Future[_T], next_work: Callable[[], Awaitable[_Work | None]]) -> _T:
        try:
            while (work := await next_work()) is not None:
                run.replies.put(await work())
        except BaseException:
            # The thread waits for a reply, or will ask for one. Either way it raises, and no thread is left behind.
            run.replies.put(Abandoned())
            wait([running])
            failure = running.exception()
            if failure is not None:
                traceback.clear_frames(failure.__traceback__)  # torch may keep an error of a backward pass
            raise
        return running.result()

    def _execute(self, run: _Run, function: Callable[..., _T], args: tuple[Any, ...]) -> _T:
        self._run = run
        try:
            return function(*args)
        finally:
            self._run = None
            run.post(None)


def _post(loop: asyncio.AbstractEventLoop, ready: asyncio.Queue[_Work | None], work: _Work | None) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ready.put_nowait, work)
