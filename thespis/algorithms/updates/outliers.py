"""Gorila's filter (Nair et al., 2015, section 5): gradients of batches whose loss is an outlier are not sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thespis.algorithms.updates.update import Gradients, Minibatches, Update
from thespis.core.types import Array


class OutlierFilter:
    """An update that marks batches as outliers whose |loss| is more than `deviations` above its running mean.

    Mean and variance are exponential averages over about `memory` batches. Outliers count in them as well: otherwise a
    lasting change of the loss would be refused for ever. Nothing is an outlier before `memory` batches.
    """

    def __init__(self, update: Update, deviations: float, memory: int = 1000) -> None:
        self._update, self._deviations, self._memory = update, deviations, memory
        self._seen = 0
        self._mean = self._variance = 0.0

    @property
    def minibatches(self) -> Minibatches | None:
        return self._update.minibatches

    def gradients(self, batch: Any, want_metrics: bool = False) -> Gradients:
        found = self._update.gradients(batch, True)
        size = abs(found.metrics["train/loss"])
        limit = self._mean + self._deviations * math.sqrt(self._variance)
        known = self._seen >= self._memory
        self._count(size)
        metrics = found.metrics if want_metrics else {}
        return found._replace(metrics=metrics, outlier=known and size > limit)

    def observe(self, batch: Any) -> None:
        self._update.observe(batch)

    def weights(self) -> dict[str, Array]:
        return self._update.weights()

    def load(self, weights: dict[str, Array]) -> None:
        self._update.load(weights)

    def state(self) -> dict[str, Array]:
        moments = np.array([self._seen, self._mean, self._variance])
        return {**{f"inner/{name}": value for name, value in self._update.state().items()}, "outliers": moments}

    def restore(self, arrays: dict[str, Array]) -> None:
        seen, self._mean, self._variance = (float(value) for value in arrays["outliers"])
        self._seen = int(seen)
        self._update.restore({k.removeprefix("inner/"): v for k, v in arrays.items() if k.startswith("inner/")})

    def _count(self, size: float) -> None:
        self._seen += 1
        # A plain average at first: an exponential one would remember its start for too long.
        share = 1.0 / min(self._seen, self._memory)
        gap = size - self._mean
        self._mean += share * gap
        self._variance = (1.0 - share) * (self._variance + share * gap * gap)
