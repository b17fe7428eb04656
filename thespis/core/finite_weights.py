"""Detects weights that are not finite. The role that owns the weights checks them and ends the run.

Updates never apply gradients that are not finite, but a step that is too large can overflow with finite gradients.
Every later loss is then NaN, and a checkpoint of such weights would replace the last good one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

CHECK_SECONDS = 0.2
"""Seconds between checks: frequent enough to stop soon, rare enough to cost nothing measurable."""


class NonFiniteWeights(ThespisError):
    """Some weights are NaN or infinite. Further training cannot repair them."""


def check_finite_weights(weights: Mapping[str, Array], who: str) -> None:
    """Raise `NonFiniteWeights` unless every floating-point number is finite."""
    for name, array in weights.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise NonFiniteWeights(
                f"{who}: the weights are no longer finite ({name}), so the run ends; lower the learning rate, "
                "or scale the rewards down"
            )
