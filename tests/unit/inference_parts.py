"""What an inference server is tested with: a policy, its weights, and the actions to expect."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from thespis.core.types import Acted, Inputs, State, Version, Versioned

NEVER = 3600.0
"""Seconds that no test lasts."""


class Policy:
    """Acts on an observation by repeating it, and counts in its state how often it saw the environment."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.weights = 0

    def act(self, inputs: Inputs, state: State) -> Acted:
        self.batches.append(len(inputs.first))
        obs: Any = inputs.obs
        counts = np.where(inputs.first, 0, state[0]) + 1
        return Acted(obs[:, 0].astype(np.int64), np.full(len(counts), self.weights, np.float32), (counts,))

    def load(self, weights: dict[str, Any]) -> None:
        self.weights = int(weights["w"])


class Weights:
    """New ones whenever a test publishes them."""

    name = "inference.weights.next"

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._update = 0

    async def publish(self) -> None:
        async with self._changed:
            self._update += 1
            self._changed.notify_all()

    async def __call__(self, newer_than: Version | None) -> Versioned:
        async with self._changed:
            await self._changed.wait_for(lambda: newer_than is None or self._update > newer_than.update)
            return Versioned(Version(0, self._update), {"w": np.array(self._update)})


def wanted(actor: int, number: int, rows: int) -> list[int]:
    return (actor * 10_000 + number * 100 + np.arange(rows)).tolist()
