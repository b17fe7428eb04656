"""What several seeds say together: interquartile means, and how sure one can be of them.

Agarwal et al., 2021 (arXiv:2108.13264): a mean of few runs follows its outliers and a median ignores half of what was
measured; the mean of the middle half does neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from thespis.core.types import Array

POINTS = 200
"""Points of a curve: more than a screen shows."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A figure of several runs: interquartile mean, its 95% interval, and the values themselves."""

    middle: float | None
    low: float | None
    high: float | None
    values: list[float]


@dataclass(frozen=True)
class Band:
    """A curve of several runs: at each x the interquartile mean and its 95% interval."""

    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def iqm(values: Array, axis: int = 0) -> Array:
    """Mean of the middle half along `axis`; if n is no multiple of four, the outermost of that half count in part."""
    ordered = np.sort(values, axis=axis)
    n = ordered.shape[axis]
    cut = n / 4
    first = np.arange(n)
    weights = np.clip(np.minimum(first + 1, n - cut) - np.maximum(first, cut), 0.0, 1.0)
    mean: Array = np.average(ordered, axis=axis, weights=weights)
    return mean


def bootstrap(values: Array, seed: int = 0, level: float = 0.95) -> tuple[Array, Array]:
    """The interval of the interquartile mean of `values`, `[runs, ...]`, had other runs of these been drawn.

    The same `seed` draws the same runs. The interval of a single run is that run.
    """
    drawn = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    means = iqm(values[drawn], axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def estimate(values: Sequence[float | None]) -> Estimate:
    """Of the runs that have a value."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Estimate(None, None, None, [])
    low, high = bootstrap(np.array(known))
    return Estimate(float(iqm(np.array(known))), float(low), float(high), known)


def held(x: Array, y: Array, grid: Array) -> Array:
    """The value that `y` last had at each point of `grid`; after its end a curve stays where it was."""
    last = np.searchsorted(x, grid, side="right") - 1
    return np.asarray(y[np.maximum(last, 0)], float)


def band(curves: Sequence[tuple[Array, Array]], even: bool = True) -> Band:
    """Curves (x, y) of several runs as one, from where all have begun to where the last ends.

    `even`: points at even distances; else at even ratios, for an axis that shows orders of magnitude.
    """
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return Band([], [], [], [])
    start, end = max(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    grid = np.linspace(start, end, POINTS) if even or start <= 0 else np.geomspace(start, end, POINTS)
    values = np.stack([held(x, y, grid) for x, y in curves])
    low, high = bootstrap(values)
    return Band(grid.tolist(), iqm(values).tolist(), low.tolist(), high.tolist())


def smoothed(y: Array, width: int) -> Array:
    """Mean of each value and the `width - 1` before it, or as many as there are."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    ends = np.arange(1, len(y) + 1)
    begins = np.maximum(ends - width, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def quantile(counts: Mapping[str, int], share: float) -> float | None:
    """The lag below or at which `share` of all steps are; `counts` gives the steps of each lag."""
    lags = sorted((int(lag), count) for lag, count in counts.items())
    total = sum(count for _, count in lags)
    seen = 0
    for lag, count in lags:
        seen += count
        if seen >= share * total:
            return float(lag)
    return None
