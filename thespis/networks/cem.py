"""The cross-entropy method (Rubinstein and Kroese, 2004): search for the best action by scoring samples.

Each iteration samples actions, scores them, keeps the elite, and fits the sampling distribution to the elite. All rows
are searched at once, in numpy: an action is a short vector, so call overhead would dominate.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array
from thespis.networks.configs import CEMConfig

Score = Callable[[Array], Array]
"""A function that returns values float32 `[N, S]` of actions `[N, S, width]`: S samples for each of N rows."""


class ActionParts(NamedTuple):
    """The layout of an action vector: `continuous` numbers in [-1, 1], then a one-hot vector for each of `choices`."""

    continuous: int
    choices: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Length of the action vector."""
        return self.continuous + sum(self.choices)

    @property
    def countable(self) -> int | None:
        """Number of different actions; None if some parts are continuous."""
        return None if self.continuous else int(np.prod(self.choices))


def search(
    score: Score, rows: int, parts: ActionParts, cfg: CEMConfig, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the best action found for each row, `[N, width]`, and its value `[N]`.

    The result is the best of all samples, not the last mean: the mean of two modes may be worse than either. If there
    are no more actions than samples, every action is scored, which is exact.
    """
    if parts.countable is not None and parts.countable <= cfg.samples:
        return _best(score, np.broadcast_to(every_choice(parts), (rows, parts.countable, parts.width)))
    mean = np.zeros((rows, 1, parts.continuous), np.float32)
    deviation = np.ones_like(mean)
    chances = [np.full((rows, 1, n), 1.0 / n, np.float32) for n in parts.choices]
    best, highest = np.zeros((rows, parts.width), np.float32), np.full(rows, -np.inf, np.float32)
    for _ in range(cfg.iterations):
        samples = _draw(mean, deviation, chances, cfg.samples, rng)
        values = score(samples)
        elite = np.argpartition(values, -cfg.elites, axis=1)[:, -cfg.elites :]
        kept = np.take_along_axis(samples, elite[..., None], 1)
        mean = kept[..., : parts.continuous].mean(1, keepdims=True)
        deviation = np.maximum(kept[..., : parts.continuous].std(1, keepdims=True), np.float32(cfg.floor))
        chances = [part.mean(1, keepdims=True) for part in split(kept, parts)]
        top = values.argmax(1)
        found = values[np.arange(rows), top]
        better = found > highest
        best[better], highest[better] = samples[better, top[better]], found[better]
    return best, highest


def every_choice(parts: ActionParts) -> Array:
    """Return every action of purely discrete parts, float32 `[countable, width]`."""
    one_hots = [np.eye(n, dtype=np.float32) for n in parts.choices]
    return np.array([np.concatenate(rows) for rows in product(*one_hots)], np.float32)


def uniform(rows: int, parts: ActionParts, rng: np.random.Generator) -> Array:
    """Return uniformly random actions, `[N, width]`."""
    numbers = rng.uniform(-1.0, 1.0, (rows, parts.continuous)).astype(np.float32)
    return np.concatenate([numbers, *(_one_hot(rng.integers(0, n, rows), n) for n in parts.choices)], 1)


def split(actions: Array, parts: ActionParts) -> list[Array]:
    """Return the one-hot vectors of each discrete part, `[..., n]`."""
    bounds = np.cumsum((parts.continuous, *parts.choices))
    return [actions[..., start:end] for start, end in pairwise(bounds)]


def _best(score: Score, actions: Array) -> tuple[Array, Array]:
    values = score(actions)
    rows, top = np.arange(len(values)), values.argmax(1)
    return actions[rows, top], values[rows, top]


def _draw(mean: Array, deviation: Array, chances: list[Array], samples: int, rng: np.random.Generator) -> Array:
    """Sample actions, `[N, samples, width]`. Numbers are clipped before scoring, as the environment would clip them."""
    rows, _, continuous = mean.shape
    numbers = mean + deviation * rng.standard_normal((rows, samples, continuous), np.float32)
    drawn = [numbers.clip(-1.0, 1.0, out=numbers)]
    for chance in chances:
        marks = rng.random((rows, samples, 1), np.float32)
        index = (marks > chance.cumsum(-1)[..., :-1]).sum(-1)
        drawn.append(_one_hot(index, chance.shape[-1]))
    return np.concatenate(drawn, -1)


def _one_hot(index: Array, size: int) -> Array:
    return np.eye(size, dtype=np.float32)[index]
