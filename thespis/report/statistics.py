"""Statistics over seeds: interquartile means with bootstrap confidence intervals.

Agarwal et al., 2021 (arXiv:2108.13264): outliers dominate the mean of few runs, and the median ignores half of the
data. The interquartile mean avoids both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from thespis.core.types import Array

POINTS = 200
"""Points per curve."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A statistic of several runs: the interquartile mean, its 95% interval, and the values of the runs."""

    middle: float | None
    low: float | None
    high: float | None
    values: list[float]


@dataclass(frozen=True)
class Band:
    """A curve of several runs: the interquartile mean and its 95% interval at each x."""

    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def iqm(values: Array, axis: int = 0) -> Array:
    """Interquartile mean along `axis`. If n is not a multiple of four, the outermost values have fractional weights."""
    ordered = np.sort(values, axis=axis)
    n = ordered.shape[axis]
    cut = n / 4
    first = np.arange(n)
    weights = np.clip(np.minimum(first + 1, n - cut) - np.maximum(first, cut), 0.0, 1.0)
    mean: Array = np.average(ordered, axis=axis, weights=weights)
    return mean


def bootstrap(values: Array, seed: int = 0, level: float = 0.95) -> tuple[Array, Array]:
    """Bootstrap interval of the interquartile mean of `values`, `[runs, ...]`.

    The same `seed` gives the same resamples. The interval of a single run is its value.
    """
    resamples = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    means = iqm(values[resamples], axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def estimate(values: Sequence[float | None]) -> Estimate:
    """Estimate from the values that are not None."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Estimate(None, None, None, [])
    low, high = bootstrap(np.array(known))
    return Estimate(float(iqm(np.array(known))), float(low), float(high), known)


def last_values(x: Array, y: Array, grid: Array) -> Array:
    """Sample a step function: the last value of `y` at or before each point of `grid`."""
    last = np.searchsorted(x, grid, side="right") - 1
    return np.asarray(y[np.maximum(last, 0)], float)


def band(curves: Sequence[tuple[Array, Array]], even: bool = True) -> Band:
    """Aggregate the curves (x, y) of several runs, from the latest start to the latest end.

    `even`: linear spacing of the points; else logarithmic spacing.
    """
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return Band([], [], [], [])
    start, end = max(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    grid = np.linspace(start, end, POINTS) if even or start <= 0 else np.geomspace(start, end, POINTS)
    values = np.stack([last_values(x, y, grid) for x, y in curves])
    low, high = bootstrap(values)
    return Band(grid.tolist(), iqm(values).tolist(), low.tolist(), high.tolist())


def smoothed(y: Array, width: int) -> Array:
    """Moving average: the mean of each value and up to `width - 1` values before it."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    ends = np.arange(1, len(y) + 1)
    begins = np.maximum(ends - width, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def quantile(counts: Mapping[str, int], share: float) -> float | None:
    """Return the smallest lag such that `share` of all steps have at most it; `counts`: steps by lag."""
    lags = sorted((int(lag), count) for lag, count in counts.items())
    total = sum(count for _, count in lags)
    seen = 0
    for lag, count in lags:
        seen += count
        if seen >= share * total:
            return float(lag)
    return None


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
