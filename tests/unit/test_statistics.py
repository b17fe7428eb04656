"""The statistics of a report against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from thespis.report.statistics import band, bootstrap, estimate, iqm, last_values, quantile, smoothed


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6], 6.5),  # a multiple of four: the middle six
        ([1, 3, 5, 7, 9, 11, 13, 15, 17], 9.0),  # 0.75 × 5, 7, 9, 11, 0.75 × 13, over 4.5
        ([0, 0, 4, 100, 1000], (0.75 * 0 + 4 + 0.75 * 100) / 2.5),
        ([10, 20, 90], (0.25 * 10 + 20 + 0.25 * 90) / 1.5),
        ([10, 20], 15.0),
        ([7], 7.0),
    ],
)
def test_interquartile_means(values: list[float], wanted: float) -> None:
    rng = np.random.default_rng(0)
    assert iqm(rng.permutation(np.array(values, float))) == pytest.approx(wanted)


def test_the_interquartile_mean_is_taken_along_an_axis() -> None:
    table = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [100.0, -5.0]])
    np.testing.assert_allclose(iqm(table), [2.5, 15.0])
    np.testing.assert_allclose(iqm(table.T, axis=1), [2.5, 15.0])


def test_the_bootstrap_draws_the_same_for_the_same_seed_and_others_for_another() -> None:
    values = np.random.default_rng(1).normal(size=(6, 3))
    first, again, other = bootstrap(values, seed=3), bootstrap(values, seed=3), bootstrap(values, seed=4)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_interval_of_two_runs_is_both_of_them_and_of_one_that_one() -> None:
    """Of two, a quarter of all samples draws the lower one twice and a quarter the upper one."""
    low, high = bootstrap(np.array([3.0, 9.0]))
    assert (low, high) == (3.0, 9.0)
    low, high = bootstrap(np.array([4.0]))
    assert (low, high) == (4.0, 4.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        low, high = bootstrap(rng.normal(size=24), seed=trial)
        covered += bool(low <= 0.0 <= high)
    assert 175 <= covered <= 199  # 95% of 200, less what percentile intervals of 24 values are known to lack


def test_an_estimate_is_of_those_that_have_a_value() -> None:
    assert estimate([None, None]).middle is None
    some = estimate([2.0, None, 4.0])
    assert (some.middle, some.low, some.high, some.values) == (3.0, 2.0, 4.0, [2.0, 4.0])


def test_a_curve_keeps_its_value_until_the_next_one_and_after_its_end() -> None:
    x, y = np.array([1.0, 3.0]), np.array([10.0, 30.0])
    np.testing.assert_array_equal(last_values(x, y, np.array([1.0, 2.9, 3.0, 99.0])), [10.0, 10.0, 30.0, 30.0])


def test_a_band_begins_where_all_have_begun_and_ends_with_the_last() -> None:
    short = (np.array([1.0, 5.0]), np.array([0.0, 10.0]))
    long = (np.array([2.0, 5.0, 8.0]), np.array([20.0, 20.0, 40.0]))
    both = band([short, long, (np.array([]), np.array([]))])
    assert (both.x[0], both.x[-1]) == (2.0, 8.0)
    assert (both.middle[0], both.low[0], both.high[0]) == (10.0, 0.0, 20.0)
    assert (both.middle[-1], both.low[-1], both.high[-1]) == (25.0, 10.0, 40.0)
    assert band([]).x == []
    ratios = np.diff(np.log(band([short, long], even=False).x))
    np.testing.assert_allclose(ratios, ratios[0])


def test_smoothing_looks_back_only() -> None:
    np.testing.assert_allclose(smoothed(np.array([1.0, 3.0, 5.0, 7.0]), 2), [1.0, 2.0, 4.0, 6.0])
    np.testing.assert_allclose(smoothed(np.array([1.0, 3.0]), 1), [1.0, 3.0])


def test_quantiles_of_lags() -> None:
    counts = {"0": 50, "2": 45, "16": 5}
    assert [quantile(counts, share) for share in (0.5, 0.51, 0.95, 0.96, 1.0)] == [0.0, 2.0, 2.0, 16.0, 16.0]
    assert quantile({}, 0.5) is None
