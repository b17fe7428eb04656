"""The role context of real time: when it yields to other events, and what it reports."""

from __future__ import annotations

import asyncio
import os
from unittest.mock import patch

import pytest

from thespis.core.context import Identity
from thespis.runtime import local_context
from thespis.runtime.local_context import LocalContext
from thespis.runtime.process import Status, status_page


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def a_context() -> LocalContext:
    page = status_page("test")
    ctx = LocalContext(Identity("actor", 0, run_seed=0), Status(page))
    os.close(page)
    return ctx


async def turns_in_a_second(ctx: LocalContext, time: Clock) -> int:
    """Count how often the role yields while it works for a second in steps of 1/128 s."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(128):
        async with ctx.work("env_step"):
            time.seconds += 1 / 128
    beside.cancel()
    return turns


@pytest.mark.parametrize(
    ("alone", "turns"),
    [
        (None, 18),  # with others: at the first step that begins 50 ms later, the seventh
        ((0.05, False), 18),  # alone among a few processes: reports are wanted as often
        ((0.65, False), 4),  # alone among many: reports are seldom, and stops can wait for so long
        ((0.65, True), 18),  # others ask it for something
    ],
)
def test_an_exclusive_role_among_many_processes_takes_fewer_turns(alone: tuple[float, bool] | None, turns: int) -> None:
    async def play() -> int:
        ctx = a_context()
        if alone is not None:
            ctx.set_exclusive(*alone)
        return await turns_in_a_second(ctx, time)

    time = Clock()
    with patch.object(local_context, "time", time):
        assert asyncio.run(play()) == turns


def test_work_is_reported_once() -> None:
    async def play() -> list[dict[str, float]]:
        ctx = a_context()
        reports = []
        for seconds in (0.5, 0.25, 0.0):
            if seconds:
                async with ctx.work("env_step"):
                    time.seconds += seconds
            reports.append(ctx.take_report().busy)
        return reports

    time = Clock()
    with patch.object(local_context, "time", time):
        assert asyncio.run(play()) == [{"env_step": 0.5}, {"env_step": 0.25}, {}]


def test_work_that_fails_is_not_reported() -> None:
    async def play() -> dict[str, float]:
        ctx = a_context()
        with pytest.raises(RuntimeError):
            async with ctx.work("env_step"):
                raise RuntimeError("a bad step")
        return ctx.take_report().busy

    assert asyncio.run(play()) == {}
