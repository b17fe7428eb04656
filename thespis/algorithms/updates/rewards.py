"""Reward shaping before targets are computed. Reported returns stay unshaped."""

from __future__ import annotations

import numpy as np

from thespis.algorithms.updates.rescaling import ArrayOrTensor
from thespis.core.errors import ThespisError
from thespis.core.types import Array


def shape_rewards(rewards: ArrayOrTensor, kind: str, scale: float) -> ArrayOrTensor:
    """Shape rewards: `none`, `sign`, `abs_one` (clip to [-1, 1]) or `scale` (multiply by `scale`)."""
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
    """Running variance of discounted returns, for reward normalisation.

    Dividing by the deviation of returns, not of rewards, keeps values near 1 for any horizon. The mean is not
    subtracted, because that would change the optimal policy. The order of updates does not matter (Chan's merge), so
    streams may be mixed.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def update(self, returns: Array, valid: Array) -> None:
        """Add the `[T, B]` returns of valid rows.

        Non-finite returns are ignored: the learner skips their batch, but the moments would stay NaN.
        """
        self.merge(return_moments(returns, valid))

    def merge(self, moments: Array) -> None:
        """Add the result of `return_moments`."""
        number, mean, squares = moments.tolist()
        if not number:
            return
        total = self._count + number
        gap = mean - self._mean
        self._squares += squares + gap * gap * self._count * number / total
        self._mean += gap * number / total
        self._count = total

    @property
    def scale(self) -> float:
        """The factor for rewards; 1 until returns vary."""
        variance = self._squares / self._count if self._count else 0.0
        return 1.0 / float(np.sqrt(variance)) if variance > 1e-8 else 1.0

    def export_state(self) -> dict[str, Array]:
        """The moments as an array."""
        return {"moments": np.array([self._count, self._mean, self._squares])}

    def restore_state(self, state: dict[str, Array]) -> None:
        """Restore `export_state`."""
        self._count, self._mean, self._squares = (float(value) for value in state["moments"])


def return_moments(returns: Array, valid: Array) -> Array:
    """Number, mean and sum of squared deviations of the finite `[T, B]` returns of valid rows."""
    values = np.asarray(returns, np.float64)[valid]
    values = values[np.isfinite(values)]
    if not values.size:
        return np.zeros(3)
    mean = float(values.mean())
    return np.array([values.size, mean, float(((values - mean) ** 2).sum())])
