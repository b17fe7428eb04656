"""When a replay lets callers in: the replay ratio is a property of the edge, stated here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Limiter(Protocol):
    """Decides, from how many items are stored, who may go on and who waits."""

    def may_insert(self, stored: int) -> bool: ...

    def may_sample(self, stored: int, items: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """Insert waits while `capacity` items are stored, sample waits until there are enough.

    With every item sampled once this bounds lag: no more than `capacity` items can be waiting.
    """

    capacity: int

    def may_insert(self, stored: int) -> bool:
        return stored < self.capacity

    def may_sample(self, stored: int, items: int) -> bool:
        return stored >= items
