"""What an item of a replay is: which of the stored steps it reads."""

from __future__ import annotations

from typing import Protocol

from thespis.core.types import Array, Drawn, Unroll
from thespis.experience.steps import Steps


class Window(Protocol):
    """What an item is: which rows it reads along the links from its own. Rows are given by number, int64 `[N]`."""

    def opened(self, steps: Steps, unroll: Unroll, numbers: Array) -> Array:
        """Rows where windows start, of an unroll that was just written to rows `numbers`, `[T + 1, B]`."""

    def sort(self, steps: Steps, pending: Array) -> tuple[Array, Array]:
        """The rows whose windows are complete, and those that wait; others are given up."""

    def errors(self, steps: Steps, numbers: Array) -> Array:
        """First priorities, float32 `[N]`, by the values the actor sent; NaN where it sent none."""

    def batch(self, steps: Steps, keys: Array, weights: Array, inserted: int) -> Drawn: ...

    @property
    def nbytes(self) -> int: ...

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...
