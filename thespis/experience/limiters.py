"""When a replay lets callers in: the replay ratio is a property of the edge, stated here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thespis.core.config import ReplayConfig
from thespis.core.errors import ThespisError


class Limiter(Protocol):
    """Decides, from how many items were ever inserted and sampled, who may go on and who waits."""

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool: ...

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """Insert waits while `capacity` items are stored, sample waits until there are enough.

    With every item sampled once this bounds lag: no more than `capacity` items can be waiting.
    """

    capacity: int

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool:
        return inserted - sampled + items <= self.capacity

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool:
        return inserted - sampled >= items


@dataclass(frozen=True, slots=True)
class SamplesPerInsert:
    """Keeps samples near `ratio` per insert, counted from when `warm_up` items were there:

        warm_up <= inserted  before anything is sampled
        -error <= ratio * (inserted - warm_up) - sampled <= error  from then on

    An insert that would leave the band waits for samples, a sample that would leave it waits for inserts. So the
    ratio is the same on every runtime and machine: who is slow decides how long a run takes, not what it computes.
    """

    ratio: float
    warm_up: int
    error: float

    @classmethod
    def of(cls, cfg: ReplayConfig, insert: int, sample: int) -> SamplesPerInsert:
        """The configured band, given the most items that one insert brings and one sample takes."""
        error = cfg.error or 2.0 * max(cfg.samples_per_insert * insert, sample)
        return cls(cfg.samples_per_insert, cfg.warm_up, error)

    def may_insert(self, inserted: int, sampled: int, items: int) -> bool:
        return self._balance(inserted + items, sampled) <= self.error

    def may_sample(self, inserted: int, sampled: int, items: int) -> bool:
        return inserted >= self.warm_up and self._balance(inserted, sampled + items) >= -self.error

    def refuse(self, name: str, insert: int, sample: int) -> None:
        """Say no to a band in which both sides could wait, given the most items one insert or one sample moves.

        While warming up, `ratio * insert <= error` lets inserts go on. Later both wait only if the band is narrower
        than one insert and one sample together; `sample <= error` makes it wide enough.
        """
        if not self.ratio > 0.0 or self.warm_up < 1:
            raise ThespisError(
                f"{name}: {self.ratio:g} samples per insert after a warm-up of {self.warm_up} never samples anything; "
                "give more than 0 samples per insert and a warm-up of at least 1"
            )
        least = max(self.ratio * insert, sample)
        if self.error < least:
            raise ThespisError(
                f"{name}: an error of {self.error:g} samples is less than what one insert brings ({insert} x "
                f"{self.ratio:g}) or one sample takes ({sample}), so both could wait for ever; raise it to {least:g}"
            )

    def _balance(self, inserted: int, sampled: int) -> float:
        return self.ratio * (inserted - self.warm_up) - sampled
