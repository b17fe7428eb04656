"""The value rescaling of R2D2 (Pohlen et al., 2018, arXiv:1805.11593): large returns without reward clipping.

Both functions avoid differences of nearly equal numbers, so float32 stays exact near 0. They use neither numpy nor
torch functions, so they work on a replay's arrays and on a learner's tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor

ArrayOrTensor = TypeVar("ArrayOrTensor", Array, "Tensor")

EPSILON = 1e-3
"""The linear term, which makes the inverse Lipschitz continuous."""


def rescale(x: ArrayOrTensor) -> ArrayOrTensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x."""
    y: ArrayOrTensor = x / ((abs(x) + 1.0) ** 0.5 + 1.0) + EPSILON * x
    return y


def unscale(y: ArrayOrTensor) -> ArrayOrTensor:
    """The inverse of `rescale`.

    With u = sqrt(|x| + 1), |y| = (u - 1) + epsilon (u^2 - 1): solve for u, then x is y (u + 1) / (1 + epsilon (u + 1)).
    """
    total = abs(y) + (1.0 + EPSILON)
    above = 2.0 * total / ((1.0 + 4.0 * EPSILON * total) ** 0.5 + 1.0) + 1.0
    x: ArrayOrTensor = y * above / (1.0 + EPSILON * above)
    return x
