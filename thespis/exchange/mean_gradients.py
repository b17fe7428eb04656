"""The mean of the gradients of several learners, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thespis.core.context import Context
from thespis.core.payloads import Contribution, GatheredGradients, GradientMessage
from thespis.core.types import Array
from thespis.exchange.compression import decompress

_BLOCK = 32 * 1024
"""Numbers per step, so that what is added and the sum stay in the cache."""


def mean_gradients(ctx: Context, parts: Sequence[Contribution], averages: bool) -> Array | None:
    """The mean of the gradients over all rows, or without `averages` their sum; None if a part has none to apply.

    The vector is for a message.
    """
    given = [decompress(part.gradients) for part in parts if part.gradients is not None]
    if len(given) < len(parts):
        return None
    return weighted_sum(given, row_weights(parts, averages), into=ctx.allocate(len(given[0])))


def row_weights(parts: Sequence[Contribution], averages: bool) -> list[float]:
    """The weight of each contribution: its share of all rows, or 1 without `averages`."""
    rows = sum(part.rows for part in parts)
    return [part.rows / rows if averages and rows else 1.0 for part in parts]


def read_combined(combined: GradientMessage | GatheredGradients, own: GradientMessage, into: Array) -> Array:
    """Write the combined gradients of a round to `into`, and return it. `own`: what the reader contributed."""
    if isinstance(combined, GatheredGradients):
        parts = [decompress(own if part is None else part) for part in combined.parts]
        return weighted_sum(parts, combined.weights, into)
    np.copyto(into, decompress(combined))
    return into


def weighted_sum(vectors: Sequence[Array], weights: Sequence[float], into: Array) -> Array:
    """Write the weighted sum of float32 vectors to `into`, and return it. Their order fixes the rounding."""
    (first, scale), *others = zip(vectors, np.array(weights, np.float32), strict=True)
    product = np.empty(min(_BLOCK, len(into)), np.float32)
    for start in range(0, len(into), _BLOCK):
        total = into[start : start + _BLOCK]
        part = product[: len(total)]
        np.multiply(first[start : start + _BLOCK], scale, out=total)
        for vector, other in others:
            np.multiply(vector[start : start + _BLOCK], other, out=part)
            total += part
    return into
