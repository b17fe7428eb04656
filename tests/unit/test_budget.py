"""The used fraction of a run's budget, by steps and by seconds."""

from __future__ import annotations

import pytest

from thespis.core.budget import Budget, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_alone_ask_no_clock() -> None:
    def never() -> float:
        raise AssertionError("the clock must not be read")

    progress = Progress(Budget(1_000), never)
    assert [progress.fraction(steps) for steps in (0, 250, 2_000)] == [0.0, 0.25, 2.0]
    assert progress.seconds == 0.0
    assert not progress.exhausted(999) and progress.exhausted(1_000)


def test_seconds_begin_with_the_first_call() -> None:
    clock = Clock()
    progress = Progress(Budget(None, 8.0), clock)
    clock.now += 50.0
    assert progress.fraction(0) == 0.0
    clock.now += 2.0
    assert progress.fraction(10**9) == pytest.approx(0.25)
    assert not progress.exhausted(10**9)


def test_of_two_limits_the_nearer_counts() -> None:
    clock = Clock()
    progress = Progress(Budget(1_000, 8.0), clock)
    progress.fraction(0)
    clock.now += 4.0
    assert (progress.fraction(100), progress.fraction(900)) == (pytest.approx(0.5), pytest.approx(0.9))


def test_a_later_incarnation_continues_where_the_first_was_saved() -> None:
    clock = Clock()
    first, second = Progress(Budget(None, 8.0), clock), Progress(Budget(None, 8.0), clock)
    first.fraction(0)
    clock.now += 2.0
    second.seconds = first.seconds
    clock.now += 30.0  # while the run was down
    assert second.fraction(0) == pytest.approx(0.25)
    clock.now += 4.0
    assert second.fraction(0) == pytest.approx(0.75)
