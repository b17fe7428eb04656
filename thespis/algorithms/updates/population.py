"""Population-based training on plain numbers (Jaderberg et al., 2017): who copies whom, and what is tried next.

    ready:    exploit(scores) -> copy a better member's weights and hyper-parameters, or go on
    copied:   explore(hyper-parameters) -> each one moved a little, or drawn anew

Nothing here knows what a member is. `scores[i]` is None while member i has none since it was last copied to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Hypers = dict[str, Any]
"""Hyper-parameters by their path in a config."""
Scores = Sequence[float | None]


class Prior(Protocol):
    """Where a hyper-parameter comes from, and what a small step away from a value is."""

    def draw(self, rng: np.random.Generator) -> Any: ...

    def perturb(self, value: Any, factor: float, rng: np.random.Generator) -> Any: ...


@dataclass(frozen=True)
class Range:
    """Between two numbers, evenly or (`log`) evenly in the logarithm; `whole` for integers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        if self.log:
            return self._within(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return self._within(rng.uniform(self.low, self.high))

    def perturb(self, value: float, factor: float, rng: np.random.Generator) -> float | int:
        """Times or divided by `factor` on a log scale; else a step of that share of half the range.

        The paper multiplies by 1.2 or 0.8, which drifts down (1.2 x 0.8 < 1) and can never leave 0.
        """
        up = bool(rng.integers(2))
        if self.log:
            moved = value * factor if up else value / factor
        else:
            step = (factor - 1.0) * (self.high - self.low) / 2.0
            moved = value + step if up else value - step
        if self.whole and round(moved) == value:
            moved = value + 1 if up else value - 1
        return self._within(moved)

    def _within(self, value: float) -> float | int:
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else float(value)


@dataclass(frozen=True)
class Choice:
    """One of several values; a small step is to a neighbour in the order they were given."""

    options: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.options[int(rng.integers(len(self.options)))]

    def perturb(self, value: Any, factor: float, rng: np.random.Generator) -> Any:
        place = self.options.index(value) + (1 if rng.integers(2) else -1)
        return self.options[min(max(place, 0), len(self.options) - 1)]


def draw(priors: Mapping[str, Prior], rng: np.random.Generator) -> Hypers:
    """Hyper-parameters to start from."""
    return {path: prior.draw(rng) for path, prior in priors.items()}


def explore(
    hypers: Hypers, priors: Mapping[str, Prior], rng: np.random.Generator, *, factor: float, resample: float
) -> Hypers:
    """Each hyper-parameter perturbed, or with probability `resample` drawn anew."""
    return {
        path: prior.draw(rng) if rng.random() < resample else prior.perturb(hypers[path], factor, rng)
        for path, prior in priors.items()
    }


def truncation(scores: Scores, member: int, rng: np.random.Generator, share: float) -> int | None:
    """Whom to copy: one of the top `share`, for a member of the bottom `share`; None to go on."""
    ranked = _ranked(scores)
    number = int(share * len(ranked))
    if member not in ranked[len(ranked) - number :]:
        return None
    return _if_better(scores, member, ranked[int(rng.integers(number))])


def tournament(scores: Scores, member: int, rng: np.random.Generator) -> int | None:
    """Whom to copy: another member drawn at random, if it is better; None to go on."""
    others = [other for other in _ranked(scores) if other != member]
    if scores[member] is None or not others:
        return None
    return _if_better(scores, member, others[int(rng.integers(len(others)))])


def best(scores: Scores) -> int | None:
    """The member that leads, the first of equals; None while nobody has a score."""
    return next(iter(_ranked(scores)), None)


def _ranked(scores: Scores) -> list[int]:
    """The members that have a score, best first."""
    scored = [(score, member) for member, score in enumerate(scores) if score is not None]
    return [member for _, member in sorted(scored, key=lambda pair: (-pair[0], pair[1]))]


def _if_better(scores: Scores, member: int, other: int) -> int | None:
    """A tie is no reason to copy: it would only make the population smaller."""
    mine, theirs = scores[member], scores[other]
    return other if mine is not None and theirs is not None and theirs > mine else None
