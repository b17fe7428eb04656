"""Limiters: keep samples per insert near a ratio by blocking inserts or samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thespis.core.config import ReplayConfig
from thespis.core.errors import ThespisError


class Limiter(Protocol):
    """Decides whether an insert or a sample may proceed, given the number of items inserted and sampled."""

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether an insert of `items` items may proceed."""

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether a sample of `items` items may proceed."""


@dataclass(frozen=True, slots=True)
class QueueLimiter:
    """An insert waits while `capacity` items are stored; a sample waits until there are enough.

    Every item is sampled once, so this bounds lag: at most `capacity` items wait.
    """

    capacity: int

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether `items` more items fit."""
        return inserted - sampled + items <= self.capacity

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether `items` items are stored."""
        return inserted - sampled >= items


@dataclass(frozen=True, slots=True)
class SamplesPerInsert:
    """Keeps samples near `ratio` per insert, counted from the end of the warm-up:

        warm_up <= inserted  before the first sample
        -error <= ratio * (inserted - warm_up) - sampled <= error  from then on

    An insert that would leave the band waits for samples; a sample that would leave it waits for inserts. So the ratio
    is the same on every runtime and machine: speed decides how long a run takes, not what it computes.
    """

    ratio: float
    warm_up: int
    error: float

    @classmethod
    def of(cls, cfg: ReplayConfig, insert: int, sample: int) -> SamplesPerInsert:
        """The configured band, given the most items of one insert and of one sample."""
        error = cfg.error or 2.0 * max(cfg.samples_per_insert * insert, sample)
        return cls(cfg.samples_per_insert, cfg.warm_up, error)

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether the balance stays below the band's upper end."""
        return self._balance(inserted + items, sampled) <= self.error

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool:
        """Whether the warm-up is over and the balance stays above the band's lower end."""
        return inserted >= self.warm_up and self._balance(inserted, sampled + items) >= -self.error

    def validate(self, name: str, insert: int, sample: int) -> None:
        """Refuse a band that can deadlock, given the most items of one insert and of one sample.

        During the warm-up `ratio * insert <= error` lets inserts proceed. Later both sides wait only if the band is
        narrower than one insert and one sample together; `sample <= error` makes it wide enough.
        """
        if not self.ratio > 0.0 or self.warm_up < 1:
            raise ThespisError(
                f"{name}: {self.ratio:g} samples per insert after a warm-up of {self.warm_up} never samples anything; "
                "give more than 0 samples per insert and a warm-up of at least 1"
            )
        least = max(self.ratio * insert, sample)
        if self.error < least:
            raise ThespisError(
                f"{name}: an error of {self.error:g} samples is less than one insert ({insert} x "
                f"{self.ratio:g}) or one sample ({sample}), so both could wait forever; raise it to {least:g}"
            )

    def _balance(self, inserted: int, sampled: int) -> float:
        return self.ratio * (inserted - self.warm_up) - sampled
