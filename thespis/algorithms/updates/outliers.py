"""Gorila's outlier filter (Nair et al., 2015, section 5): it discards gradients of batches with an unusual loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thespis.algorithms.updates.update import Gradients, Minibatches, Update
from thespis.core.types import Array


class OutlierFilter:
    """An update that marks a batch as an outlier if |loss| exceeds its running mean by `deviations` deviations.

    Mean and variance are exponential averages over about `memory` batches. They include outliers; otherwise the filter
    would reject a lasting change of the loss forever. The filter starts after `memory` batches.
    """

    def __init__(self, update: Update, deviations: float, memory: int = 1000) -> None:
        self._update, self._deviations, self._memory = update, deviations, memory
        self._seen = 0
        self._mean = self._variance = 0.0

    @property
    def minibatches(self) -> Minibatches | None:
        """See `Update`."""
        return self._update.minibatches

    def gradients(self, batch: Any, want_metrics: bool = False) -> Gradients:
        """The inner update's gradients, marked if the loss is an outlier."""
        found = self._update.gradients(batch, True)
        size = abs(found.metrics["train/loss"])
        limit = self._mean + self._deviations * math.sqrt(self._variance)
        known = self._seen >= self._memory
        self._count(size)
        metrics = found.metrics if want_metrics else {}
        return found._replace(metrics=metrics, outlier=known and size > limit)

    def observe(self, batch: Any) -> None:
        """See `Update`."""
        self._update.observe(batch)

    def weights(self) -> dict[str, Array]:
        """See `Update`."""
        return self._update.weights()

    def load(self, weights: dict[str, Array]) -> None:
        """See `Update`."""
        self._update.load(weights)

    def state(self) -> dict[str, Array]:
        """The inner update's state, and the moments of the loss."""
        moments = np.array([self._seen, self._mean, self._variance])
        return {**{f"inner/{name}": value for name, value in self._update.state().items()}, "outliers": moments}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""
        seen, self._mean, self._variance = (float(value) for value in arrays["outliers"])
        self._seen = int(seen)
        self._update.restore({k.removeprefix("inner/"): v for k, v in arrays.items() if k.startswith("inner/")})

    def _count(self, size: float) -> None:
        self._seen += 1
        # A plain average at first, because an exponential average would keep its initial value for too long.
        share = 1.0 / min(self._seen, self._memory)
        gap = size - self._mean
        self._mean += share * gap
        self._variance = (1.0 - share) * (self._variance + share * gap * gap)
