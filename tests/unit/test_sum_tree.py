"""Proportional sampling: the tree against a list, and samplers against their probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thespis.experience.samplers import Fifo, Prioritised, Uniform
from thespis.experience.sum_tree import SumTree

WEIGHTS = st.floats(0.0, 1e6) | st.just(0.0)


@given(
    capacity=st.integers(1, 40) | st.integers(4_090, 9_000),
    writes=st.lists(st.lists(st.tuples(st.integers(0, 8_999), WEIGHTS), min_size=1, max_size=8), max_size=12),
    shares=st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=10),
)
def test_the_tree_is_a_list_of_weights(
    capacity: int, writes: list[list[tuple[int, float]]], shares: list[float]
) -> None:
    tree, naive = SumTree(capacity), np.zeros(capacity)
    for batch in writes:
        leaves = np.array([leaf % capacity for leaf, _ in batch])
        weights = np.array([weight for _, weight in batch])
        tree.set(leaves, weights)
        for leaf, weight in zip(leaves, weights, strict=True):
            naive[leaf] = weight
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), naive)
    assert tree.total == pytest.approx(naive.sum())
    if not naive.any():
        return
    masses = np.array(shares) * tree.total
    found = tree.find(masses)
    assert (naive[found] > 0.0).all(), "a leaf of weight 0 is never found"
    ends = np.cumsum(naive)
    slack = 1e-9 * ends[-1]
    for mass, leaf in zip(masses, found, strict=True):
        assert ends[leaf] - naive[leaf] - slack <= mass <= ends[leaf] + slack


def test_rounding_never_leaves_the_tree() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([0.1, 0.2, 0.3, 0.0, 0.0]))
    assert tree.find(np.array([tree.total, np.nextafter(tree.total, 2.0)])).tolist() == [2, 2]


def test_priorities_become_the_paper_s_probabilities_and_weights() -> None:
    sampler = Prioritised(4, alpha=0.6, beta=0.4)
    slots = np.arange(4)
    sampler.add(slots)
    sampler.prioritise(slots, np.array([1.0, 2.0, 4.0, 8.0]))
    drawn = sampler.draw(100_000, np.random.default_rng(0))
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(shares, [0.120550, 0.182720, 0.276951, 0.419779], atol=1e-4)  # stratified: exact
    weights = sampler.weigh(slots)
    np.testing.assert_allclose(weights / weights.max(), [1.0, 0.846745, 0.716978, 0.607097], rtol=1e-5)
    np.testing.assert_allclose(weights / 4**0.4, [1.338780, 1.133606, 0.959875, 0.812770], rtol=1e-5)


def test_without_an_exponent_priorities_change_nothing() -> None:
    sampler = Prioritised(8, alpha=0.0, beta=1.0)
    sampler.add(np.arange(8))
    sampler.prioritise(np.arange(8), np.arange(8.0))
    np.testing.assert_allclose(sampler.weigh(np.arange(8)), 8.0)


def test_a_new_item_gets_the_highest_priority_seen() -> None:
    sampler = Prioritised(4, alpha=1.0, beta=1.0)
    sampler.add(np.array([0, 1]))
    sampler.prioritise(np.array([0, 1]), np.array([9.0, 3.0]))
    sampler.add(np.array([2]))
    weights = sampler.weigh(np.array([0, 1, 2]))
    np.testing.assert_allclose(weights / weights.max(), [1 / 3, 1.0, 1 / 3], rtol=1e-5)


def test_nothing_is_found_beyond_the_last_that_weighs_anything() -> None:
    """A tree of three levels, full except for its ends; masses at and beyond its total."""
    tree = SumTree(20_000)
    weights = np.full(20_000, 0.1)
    weights[:7] = weights[-5_000:] = 0.0
    tree.set(np.arange(20_000), weights)
    found = tree.find(np.array([0.0, tree.total * (1 - 1e-16), tree.total, 2 * tree.total]))
    assert found.tolist() == [7, 14_999, 14_999, 14_999]


def test_fifo_draws_the_oldest_first() -> None:
    sampler = Fifo(20)
    sampler.add(np.array([7, 3]))
    sampler.add(np.array([5, 0]))
    rng = np.random.default_rng(0)
    assert sampler.draw(3, rng).tolist() == [7, 3, 5]
    sampler.remove(np.array([3, 3, 9]))
    sampler.add(np.array([3]))
    assert sampler.draw(4, rng).tolist() == [7, 5, 0, 3]
    assert sampler.draw(6, rng).tolist() == [7, 5, 0, 3, 7, 5]


@pytest.mark.parametrize("kind", ["uniform", "prioritised", "fifo"])
def test_only_items_are_drawn_and_a_saved_sampler_draws_the_same(kind: str) -> None:
    def make() -> Uniform | Prioritised | Fifo:
        return {"uniform": Uniform, "fifo": Fifo}.get(kind, lambda rows: Prioritised(rows, 0.6, 0.4))(50)

    sampler = make()
    sampler.add(np.arange(3, 40))
    sampler.remove(np.array([5, 5, 6, 45]))
    sampler.prioritise(np.array([7, 8]), np.array([5.0, 0.0]))
    assert sampler.items == 35
    drawn = sampler.draw(2000, np.random.default_rng(0))
    assert set(drawn.tolist()) <= set(range(3, 40)) - {5, 6}
    assert len(set(drawn.tolist())) > 30
    other = make()
    other.restore(sampler.state())
    assert other.items == 35
    np.testing.assert_array_equal(
        other.draw(500, np.random.default_rng(1)), sampler.draw(500, np.random.default_rng(1))
    )


def test_uniform_is_uniform() -> None:
    sampler = Uniform(64)
    sampler.add(np.arange(0, 64, 2))
    counts = np.bincount(sampler.draw(64_000, np.random.default_rng(0)), minlength=64)[::2]
    assert ((counts - 2000) ** 2 / 2000).sum() < 61.1, "chi-square of 31 degrees of freedom, p = 0.001"
