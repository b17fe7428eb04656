"""The value rescaling of R2D2 (Pohlen et al., 2018, arXiv:1805.11593): large returns without clipping rewards.

Both functions are written without the differences of near numbers that the usual formulas have, so float32 loses
nothing near 0; and without numpy or torch, so a replay can use them on arrays and a learner on tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor

ArrayOrTensor = TypeVar("ArrayOrTensor", Array, "Tensor")

EPSILON = 1e-3
"""Keeps the inverse from growing faster than linearly in the end."""


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
