"""Means and variances merged from several workers, in numpy without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array

MAX_DEVIATIONS = 10.0
"""Normalised observations are clipped to this many standard deviations."""


class Moments(NamedTuple):
    """Mean and variance of `number` rows. `mean`, `var`: float64 `[size]`."""

    number: int
    mean: Array
    var: Array

    @classmethod
    def empty(cls, size: int) -> Moments:
        """Return the moments of no rows: mean 0, variance 1."""
        return cls(0, np.zeros(size), np.ones(size))

    @classmethod
    def of(cls, rows: Array) -> Moments:
        """Return the moments of `[N, size]` rows, at least one."""
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.mean(0), exact.var(0))

    def scale(self, rows: Array) -> Array:
        """Return rows in standard deviations from the mean, float32, clipped."""
        scaled: Array = np.clip((rows - self.mean) / np.sqrt(self.var + 1e-8), -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return scaled.astype(np.float32)


def merge(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all rows of all parts (Chan et al.). The order of the parts affects the rounding."""
    parts = iter(parts)
    number, mean, var = next(parts)
    for part in parts:
        total = number + part.number
        gap = part.mean - mean
        var = (var * number + part.var * part.number + gap**2 * (number * part.number / total)) / total
        mean = mean + gap * (part.number / total)
        number = total
    return Moments(number, mean, var)
