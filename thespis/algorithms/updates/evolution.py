"""The arithmetic of evolution strategies: noise of each pair, weights of the returns, and the parameter step.

Every operation is elementwise and in a fixed order. All workers with the same returns therefore compute bit-equal
parameters; a matrix product would not guarantee this across machines.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thespis.algorithms.updates.flat import build_flat, decayed
from thespis.core.errors import ThespisError
from thespis.core.types import Array

if TYPE_CHECKING:
    from thespis.algorithms.es import ES


class Generation(NamedTuple):
    """The results of a generation, enough to compute the next parameters from the current ones.

    `returns`: float32 `[pairs, 2]`, for positive and negative noise. `progress`: fraction of the run before it.
    """

    number: int
    returns: Array
    progress: float


class Evolution:
    """The parameters of a generation, their perturbations, and the step to the next generation.

    `values`: float32 `[n]`, changed in place. `noise`: float32, the shared table; a slice of length n is one direction.
    `seed`: determines the slices of each generation.
    """

    def __init__(self, algorithm: ES, seed: int, values: Array, noise: Array) -> None:
        self._algorithm, self._seed, self._noise = algorithm, seed, noise
        self._optimizer = build_flat(algorithm.step.rule, len(values))
        self._scratch = np.empty_like(values)
        self.values = values
        self.generation = 0

    @property
    def slots(self) -> dict[str, Array]:
        """The optimiser's running averages by name. Change them only in place."""
        return self._optimizer.slots

    def perturb(self, pairs: range, members: Array) -> None:
        """Fill `members`, float32 `[2 * len(pairs), n]`: the parameters plus the noise of each pair, then minus it."""
        half, width = len(pairs), len(self.values)
        for row, start in enumerate(self._starts()[pairs.start : pairs.stop]):
            np.multiply(self._noise[start : start + width], np.float32(self._algorithm.deviation), out=self._scratch)
            np.add(self.values, self._scratch, out=members[row])
            np.subtract(self.values, self._scratch, out=members[half + row])

    def apply(self, generation: Generation) -> dict[str, float]:
        """Apply the step that follows from the returns of the current generation."""
        step, width = self._algorithm.step, len(self.values)
        top = self._algorithm.top
        weights = rank_weights(generation.returns) if top is None else top_weights(generation.returns, top)
        directions = (self._noise[start : start + width] for start in self._starts())
        gradient = search_gradient(self.values, directions, weights, step.weight_decay)
        rate = decayed(step.learning_rate, generation.progress) if step.anneal else step.learning_rate
        self._optimizer.step(self.values, gradient, rate)
        self.generation += 1
        return {"train/grad_norm": float(np.linalg.norm(gradient)), "train/learning_rate": rate}

    def adopt(self, generation: int, values: Array, slots: dict[str, Array]) -> None:
        """Copy the state of another instance. `slots` may be empty if `apply` is never called."""
        np.copyto(self.values, values)
        for name, slot in slots.items():
            np.copyto(self.slots[name], slot)
        self.generation = generation

    def digest(self) -> str:
        """SHA-256 of the parameters."""
        return hashlib.sha256(self.values.tobytes()).hexdigest()

    def _starts(self) -> list[int]:
        """Start of each pair's noise in the table; it depends only on the seed and the generation."""
        rng = np.random.default_rng(_sequence(self._seed, "noise", self.generation))
        starts: list[int] = rng.integers(
            len(self._noise) - len(self.values) + 1, size=self._algorithm.directions
        ).tolist()
        return starts


def search_gradient(values: Array, directions: Iterable[Array], weights: Array, weight_decay: float) -> Array:
    """The gradient for the optimiser, float32 `[n]`: weight_decay * values - sum(weight * direction).

    `weights`: one per direction, from its two returns. The sum is in the order of the directions.
    """
    gradient: Array = np.float32(weight_decay) * values
    scratch = np.empty_like(values)
    for direction, weight in zip(directions, weights, strict=True):
        if weight:
            np.multiply(direction, np.float32(weight), out=scratch)
            gradient -= scratch
    return gradient


def centred_ranks(returns: Array) -> Array:
    """Ranks of all returns, float64 from -0.5 to 0.5. Equal returns share their mean rank, so a tied pair cancels."""
    _, which, counts = np.unique(returns, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts + 1) / 2
    centred: Array = (ranks / (returns.size - 1) - 0.5)[which].reshape(returns.shape)
    return centred


def rank_weights(returns: Array) -> Array:
    """Weight of each pair's noise in the ascent direction, float64 `[pairs]` (ES, algorithm 1 with ranks)."""
    ranks = centred_ranks(returns)
    weights: Array = (ranks[:, 0] - ranks[:, 1]) / returns.size
    return weights


def top_weights(returns: Array, top: int) -> Array:
    """Weights of augmented random search: the `top` pairs by better return, divided by their standard deviation."""
    exact = returns.astype(np.float64)
    best = np.argsort(-exact.max(1), kind="stable")[:top]
    chosen = exact[best].ravel().tolist()
    mean = math.fsum(chosen) / len(chosen)
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in chosen) / len(chosen))
    weights = np.zeros(len(returns))
    if spread > 0.0:
        weights[best] = (exact[best, 0] - exact[best, 1]) / (len(best) * spread)
    return weights


def fill_noise(table: Array, seed: int) -> None:
    """Fill the noise table. The same seed gives the same table in every process."""
    np.random.default_rng(_sequence(seed, "table")).standard_normal(dtype=np.float32, out=table)


def episode_seed(seed: int, generation: int, unit: int) -> int:
    """The reset seed of a unit's environments; it does not depend on the worker."""
    return int(_sequence(seed, "episodes", generation, unit).generate_state(1, np.uint64)[0])


def check_table(length: int, parameters: int) -> None:
    """Refuse a noise table that is shorter than two directions."""
    if length < 2 * parameters:
        raise ThespisError(
            f"--noise-table is {length} but the network has {parameters} parameters; give at least {2 * parameters}"
        )


def _sequence(seed: int, stream: str, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(stream.encode()), *key))
