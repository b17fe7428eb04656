"""Weights that are not finite: found by whoever holds them, and a reason to end the run.

Gradients that are not finite are never applied, but a step that is too long overflows with finite ones, too. From then
on every loss is NaN, and a checkpoint of such weights would replace the last good one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

CHECK_SECONDS = 0.2
"""How often a holder of weights looks at them: often enough to stop soon, too seldom to cost anything."""


class NonFiniteWeights(ThespisError):
    """Some of the weights are NaN or infinite. Nothing that is learned from here on can mend them."""


def check_finite(weights: Mapping[str, Array], who: str) -> None:
    """Raise `NonFiniteWeights` unless all floating-point arrays are finite, told by their sums."""
    for name, array in weights.items():
        if np.issubdtype(array.dtype, np.floating) and not math.isfinite(array.sum(dtype=np.float64)):
            raise NonFiniteWeights(
                f"{who}: the weights are no longer finite ({name}), so the run cannot go on; lower the learning rate, "
                "or scale the rewards down"
            )
