"""Eager coroutines: a coroutine that never waits needs no task and no turn of the event loop.

Most calls of a service finish without waiting, and actors make many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def begin(work: asyncio.Future[_T] | Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
    """Run `work` until it ends or first waits; the rest of it becomes a task.

    The first part runs in the caller's task, so `work` must not use its current task, e.g. by `asyncio.timeout`.
    """
    if isinstance(work, asyncio.Future):
        return work
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    try:
        awaited = work.send(None)
    except StopIteration as end:
        done.set_result(end.value)
    except asyncio.CancelledError:
        done.cancel()
    except Exception as error:
        done.set_exception(error)
    else:
        return loop.create_task(_finish(work, awaited))
    return done


async def _finish(work: Coroutine[Any, Any, _T], awaited: Any) -> _T:
    return await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, _T], awaited: Any) -> Generator[Any, Any, _T]:
    """Resume a coroutine that waits for `awaited`."""
    while True:
        try:
            try:
                sent = yield awaited
            except GeneratorExit:
                work.close()  # throwing GeneratorExit would fail if the garbage collector has closed it already
                raise
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
        except StopIteration as end:
            result: _T = end.value
            return result
