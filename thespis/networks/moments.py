"""Means and variances that several places contribute to, in numpy alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array

LIMIT = 10.0
"""Normalised observations are clipped to this many standard deviations."""


class Moments(NamedTuple):
    """`mean`, `var`: float64 `[size]`, over `number` rows."""

    number: int
    mean: Array
    var: Array

    @classmethod
    def none(cls, size: int) -> Moments:
        return cls(0, np.zeros(size), np.ones(size))

    @classmethod
    def of(cls, rows: Array) -> Moments:
        """Of `[N, size]` rows, at least one."""
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.mean(0), exact.var(0))

    def scale(self, rows: Array) -> Array:
        """Rows in deviations from the mean, float32, clipped."""
        scaled: Array = np.clip((rows - self.mean) / np.sqrt(self.var + 1e-8), -LIMIT, LIMIT)
        return scaled.astype(np.float32)


def merge(parts: Iterable[Moments]) -> Moments:
    """All rows of all parts together (Chan et al.), one part after the other: their order is part of the result."""
    parts = iter(parts)
    number, mean, var = next(parts)
    for part in parts:
        total = number + part.number
        gap = part.mean - mean
        var = (var * number + part.var * part.number + gap**2 * (number * part.number / total)) / total
        mean = mean + gap * (part.number / total)
        number = total
    return Moments(number, mean, var)
