"""How much of a run is over, by its steps and by its seconds."""

from __future__ import annotations

import pytest

from thespis.core.budget import Budget, Spending


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_alone_ask_no_clock() -> None:
    def never() -> float:
        raise AssertionError("asked for the time")

    spending = Spending(Budget(1_000), never)
    assert [spending.share(steps) for steps in (0, 250, 2_000)] == [0.0, 0.25, 2.0]
    assert spending.seconds == 0.0
    assert not spending.last(999) and spending.last(1_000)


def test_seconds_begin_with_the_first_question() -> None:
    clock = Clock()
    spending = Spending(Budget(None, 8.0), clock)
    clock.now += 50.0
    assert spending.share(0) == 0.0
    clock.now += 2.0
    assert spending.share(10**9) == pytest.approx(0.25)
    assert not spending.last(10**9)


def test_of_two_limits_the_nearer_counts() -> None:
    clock = Clock()
    spending = Spending(Budget(1_000, 8.0), clock)
    spending.share(0)
    clock.now += 4.0
    assert (spending.share(100), spending.share(900)) == (pytest.approx(0.5), pytest.approx(0.9))


def test_a_later_life_goes_on_where_the_first_was_saved() -> None:
    clock = Clock()
    first, second = Spending(Budget(None, 8.0), clock), Spending(Budget(None, 8.0), clock)
    first.share(0)
    clock.now += 2.0
    second.seconds = first.seconds
    clock.now += 30.0  # while nobody trained
    assert second.share(0) == pytest.approx(0.25)
    clock.now += 4.0
    assert second.share(0) == pytest.approx(0.75)
