"""What the learner does to rewards before it computes targets. Reported returns are never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor

# By name: a replay shapes rewards too, and its process does without torch.
ArrayOrTensor = TypeVar("ArrayOrTensor", Array, "Tensor")


def shape_rewards(rewards: ArrayOrTensor, kind: str, scale: float) -> ArrayOrTensor:
    """Rewards as the learner sees them: `none`, `sign`, `abs_one` (clip to [-1, 1]) or `scale` (times `scale`)."""
    if kind == "none":
        return rewards
    if kind == "scale":
        return rewards * scale
    if kind == "abs_one":
        return rewards.clip(-1.0, 1.0)
    if kind == "sign":
        return np.sign(rewards) if isinstance(rewards, np.ndarray) else rewards.sign()
    raise ThespisError(f"unknown reward shaping '{kind}': choose none, sign, abs_one or scale.")


class ReturnScale:
    """Running variance of discounted returns, by which rewards are divided.

    Dividing by the spread of returns, not of rewards, keeps values near one whatever the horizon. The mean is
    not subtracted: that would change which policy is best. Order of updates does not matter (Chan's merge),
    so returns of any number of streams may be mixed.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def update(self, returns: Array, valid: Array) -> None:
        """Take in the `[T, B]` returns of the rows that are transitions.

        Returns that are not finite are left out: the batch they came with is skipped, but the moments would stay NaN.
        """
        values = np.asarray(returns, np.float64)[valid]
        values = values[np.isfinite(values)]
        if not values.size:
            return
        mean = float(values.mean())
        total = self._count + values.size
        gap = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + gap * gap * self._count * values.size / total
        self._mean += gap * values.size / total
        self._count = total

    @property
    def scale(self) -> float:
        """Multiply rewards by this; 1 until returns vary."""
        variance = self._squares / self._count if self._count else 0.0
        return 1.0 / float(np.sqrt(variance)) if variance > 1e-8 else 1.0

    def export_state(self) -> dict[str, Array]:
        return {"moments": np.array([self._count, self._mean, self._squares])}

    def restore_state(self, state: dict[str, Array]) -> None:
        self._count, self._mean, self._squares = (float(value) for value in state["moments"])
