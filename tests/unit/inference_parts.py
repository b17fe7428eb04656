"""Parts for tests of an inference server: a policy, its weights, and the expected actions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from thespis.core.types import Inputs, PolicyOutput, State, Version, VersionedWeights

NEVER = 3600.0
"""Seconds, longer than any test."""


class Policy:
    """Returns the observation as the action, and counts calls per environment in its state."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.weights = 0

    def act(self, inputs: Inputs, state: State) -> PolicyOutput:
        self.batches.append(len(inputs.first))
        obs: Any = inputs.obs
        counts = np.where(inputs.first, 0, state[0]) + 1
        return PolicyOutput(obs[:, 0].astype(np.int64), np.full(len(counts), self.weights, np.float32), (counts,))

    def load(self, weights: dict[str, Any]) -> None:
        self.weights = int(weights["w"])


class Weights:
    """A weight store that a test publishes to."""

    name = "inference.weights.next"

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._update = 0

    async def publish(self) -> None:
        async with self._changed:
            self._update += 1
            self._changed.notify_all()

    async def __call__(self, newer_than: Version | None) -> VersionedWeights:
        async with self._changed:
            await self._changed.wait_for(lambda: newer_than is None or self._update > newer_than.update)
            return VersionedWeights(Version(0, self._update), {"w": np.array(self._update)})


def wanted(actor: int, number: int, rows: int) -> list[int]:
    return (actor * 10_000 + number * 100 + np.arange(rows)).tolist()
