"""Coroutines that are begun at once: one that never waits needs no task, and no turn of the event loop.

Most answers of a service are like that, and an actor waits for many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: asyncio.Future[T] | Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run `work` to its end or to where it first waits; what is left of it becomes a task.

    Until then it runs as part of whatever called this, so it must not ask for its own task: no `asyncio.timeout`.
    """
    if isinstance(work, asyncio.Future):
        return work
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
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


async def _finish(work: Coroutine[Any, Any, T], awaited: Any) -> T:
    return await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for `awaited`."""
    while True:
        try:
            try:
                sent = yield awaited
            except GeneratorExit:
                work.close()  # thrown in, it would be an error where garbage collection has closed it before
                raise
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
        except StopIteration as end:
            result: T = end.value
            return result
