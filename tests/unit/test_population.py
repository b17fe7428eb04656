"""Population-based training on plain numbers: exploit, explore, and that both are necessary."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thespis.population.exploit import (
    Choice,
    Hypers,
    Prior,
    Range,
    best,
    draw_hypers,
    explore,
    tournament,
    truncation,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.floats(1.01, 3.0))
def test_what_is_drawn_and_perturbed_stays_in_bounds(seed: int, log: bool, whole: bool, factor: float) -> None:
    prior, random = Range(1.0, 20.0, log, whole), rng(seed)
    value = prior.draw(random)
    for _ in range(20):
        assert 1.0 <= value <= 20.0 and (not whole or isinstance(value, int))
        moved = prior.perturb(value, factor, random)
        assert moved != value or value in (1, 20), "a step of size 0 explores nothing"
        value = moved


def test_a_log_range_is_even_in_the_logarithm_and_steps_cancel_out() -> None:
    prior, random = Range(1e-5, 1e-1, log=True), rng()
    decades = Counter(math.floor(math.log10(prior.draw(random))) for _ in range(4000))
    assert all(900 < decades[decade] < 1100 for decade in (-5, -4, -3, -2))
    logs = [math.log(prior.perturb(1e-3, 1.2, random)) - math.log(1e-3) for _ in range(4000)]
    assert abs(np.mean(logs)) < 0.01 and {round(abs(step), 6) for step in logs} == {round(math.log(1.2), 6)}


def test_a_linear_range_can_leave_zero() -> None:
    assert any(Range(0.0, 1.0).perturb(0.0, 1.2, rng(seed)) > 0 for seed in range(5))


def test_a_choice_moves_to_a_neighbour() -> None:
    prior = Choice(("a", "b", "c"))
    assert {prior.perturb("b", 1.2, rng(seed)) for seed in range(20)} == {"a", "c"}
    assert {prior.perturb("a", 1.2, rng(seed)) for seed in range(20)} == {"a", "b"}
    assert {prior.draw(rng(seed)) for seed in range(20)} == {"a", "b", "c"}


def test_only_the_bottom_copies_from_the_top() -> None:
    scores = [5.0, 1.0, 8.0, 7.0, 2.0, 6.0, 3.0, 4.0]
    chosen = {member: {truncation(scores, member, rng(seed), 0.25) for seed in range(30)} for member in range(8)}
    assert chosen[1] == chosen[4] == {2, 3}
    assert all(chosen[member] == {None} for member in (0, 2, 3, 5, 6, 7))


def test_who_has_no_score_is_left_out() -> None:
    scores = [None, 1.0, 8.0, None]
    assert truncation(scores, 0, rng(), 0.5) is None
    assert truncation(scores, 1, rng(), 0.5) == 2
    assert truncation([1.0, None, None], 0, rng(), 0.25) is None
    assert tournament(scores, 0, rng()) is None and tournament([1.0, None], 0, rng()) is None
    assert best(scores) == 2 and best([None, None]) is None


def test_equals_do_not_copy_each_other() -> None:
    assert truncation([3.0, 3.0], 1, rng(), 0.5) is None
    assert tournament([3.0, 3.0], 1, rng()) is None
    assert best([3.0, 3.0]) == 0


def test_a_tournament_is_against_anybody() -> None:
    scores = [1.0, 2.0, 3.0]
    assert {tournament(scores, 0, rng(seed)) for seed in range(30)} == {1, 2}
    assert {tournament(scores, 1, rng(seed)) for seed in range(30)} == {None, 2}
    assert {tournament(scores, 2, rng(seed)) for seed in range(30)} == {None}


def test_explore_perturbs_or_draws_anew() -> None:
    priors: dict[str, Prior] = {"a": Range(1e-4, 1.0, log=True), "b": Choice((1, 2, 3, 4, 5))}
    moved = explore({"a": 0.01, "b": 3}, priors, rng(), factor=2.0, resample=0.0)
    assert moved["a"] in (0.005, 0.02) and moved["b"] in (2, 4)
    drawn = [explore({"a": 0.01, "b": 3}, priors, rng(seed), factor=2.0, resample=1.0)["a"] for seed in range(50)]
    assert min(drawn) < 1e-3 and max(drawn) > 0.1
    assert draw_hypers(priors, rng(7)) == draw_hypers(priors, rng(7)) != draw_hypers(priors, rng(8))


def toy(seed: int, *, exploits: bool, explores: bool, steps: int = 100) -> float:
    """The paper's toy problem: maximise 1.2 - |theta|^2, while a member can only follow h . theta^2 for its own h.

    Member 0 sees only the first coordinate, member 1 the second, so neither reaches the maximum alone.
    """
    random = rng(seed)
    priors: dict[str, Prior] = {"h0": Range(0.0, 1.0), "h1": Range(0.0, 1.0)}
    thetas = [np.array([0.9, 0.9]), np.array([0.9, 0.9])]
    hypers: list[Hypers] = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
    reached = -math.inf
    for step in range(1, steps + 1):
        for theta, hyper in zip(thetas, hypers, strict=True):
            theta -= 0.02 * 2 * np.array([hyper["h0"], hyper["h1"]]) * theta
        scores = [1.2 - float(theta @ theta) for theta in thetas]
        reached = max(reached, *scores)
        if step % 4:
            continue
        for member in range(2):
            parent = truncation(scores, member, random, 0.5) if exploits else None
            if parent is not None:
                thetas[member], hypers[member] = thetas[parent].copy(), dict(hypers[parent])
            if explores:
                hypers[member] = explore(hypers[member], priors, random, factor=1.2, resample=0.0)
    return reached


@pytest.mark.parametrize("seed", range(5))
def test_the_toy_takes_both(seed: int) -> None:
    assert toy(seed, exploits=False, explores=False) < 0.4
    assert toy(seed, exploits=True, explores=False) < 0.4
    assert toy(seed, exploits=False, explores=True) < 1.18 < toy(seed, exploits=True, explores=True)
    assert toy(seed, exploits=True, explores=True, steps=200) > 1.199
