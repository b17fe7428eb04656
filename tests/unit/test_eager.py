"""Eager coroutines: they run at once until they first wait, and the rest is an ordinary task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from thespis.core import eager_call


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    asyncio.run(run())


def test_what_does_not_wait_is_done_at_once() -> None:
    async def scene() -> None:
        async def answer() -> int:
            return 5

        done = eager_call.begin(answer())
        assert done.done() and done.result() == 5

    play(scene)


def test_a_future_is_its_own_beginning() -> None:
    async def scene() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        assert eager_call.begin(future) is future

    play(scene)


def test_what_waits_goes_on_as_a_task() -> None:
    async def scene() -> None:
        gate, steps = asyncio.Event(), []

        async def answer() -> str:
            steps.append("begun")
            await gate.wait()
            await asyncio.sleep(0)
            steps.append("opened")
            return "done"

        begun = eager_call.begin(answer())
        assert steps == ["begun"] and not begun.done()
        gate.set()
        assert await begun == "done" and steps == ["begun", "opened"]

    play(scene)


def test_an_error_is_the_answer_whenever_it_comes() -> None:
    async def scene() -> None:
        async def fail(turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            raise ValueError("no")

        for turns in (0, 1, 3):
            with pytest.raises(ValueError, match="no"):
                await eager_call.begin(fail(turns))

    play(scene)


@pytest.mark.parametrize("first", ["what was begun", "the rest of it"])
def test_garbage_collection_may_close_it_in_any_order(first: str) -> None:
    async def scene() -> None:
        closed = []

        async def answer() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                closed.append(True)

        work = answer()
        begun = eager_call.begin(work)
        assert isinstance(begun, asyncio.Task)
        await asyncio.sleep(0)
        rest = begun.get_coro()
        for coroutine in (work, rest) if first == "what was begun" else (rest, work):
            coroutine.close()  # type: ignore[union-attr]
        assert closed == [True]
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)

    play(scene)


def test_who_waits_can_be_cancelled_and_can_refuse() -> None:
    async def scene() -> None:
        seen: list[Any] = []

        async def wait(refuse: bool) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                if not refuse:
                    raise
            return "went on"

        given_up, stubborn = eager_call.begin(wait(refuse=False)), eager_call.begin(wait(refuse=True))
        await asyncio.sleep(0)
        for begun in (given_up, stubborn):
            begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await stubborn == "went on" and seen == ["cancelled", "cancelled"]

    play(scene)


def test_conditions_and_locks_work_in_it() -> None:
    async def scene() -> None:
        changed, level = asyncio.Condition(), 0

        async def above(limit: int) -> int:
            async with changed:
                await changed.wait_for(lambda: level > limit)
                return level

        waiting = [eager_call.begin(above(limit)) for limit in (0, 1)]
        for _ in waiting:
            async with changed:
                level += 1
                changed.notify_all()
            await asyncio.sleep(0.001)
        assert [await one for one in waiting] == [1, 2]

    play(scene)
