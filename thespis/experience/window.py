"""Window: defines an item of a replay by the stored steps it reads."""

from __future__ import annotations

from typing import Protocol

from thespis.core.types import Array, ReplaySample, Unroll
from thespis.experience.step_storage import StepStorage


class Window(Protocol):
    """An item: the rows it reads along the links from its first. Rows are given by number, int64 `[N]`."""

    def opened(self, steps: StepStorage, unroll: Unroll, numbers: Array) -> Array:
        """Rows at which windows start, of an unroll just written to rows `numbers`, `[T + 1, B]`."""

    def sort(self, steps: StepStorage, pending: Array) -> tuple[Array, Array]:
        """The rows with complete windows, and the rows that wait; all others are given up."""

    def errors(self, steps: StepStorage, numbers: Array) -> Array:
        """Initial priorities, float32 `[N]`, by the actor's action values; NaN without a value."""

    def batch(self, steps: StepStorage, keys: Array, weights: Array, inserted: int) -> ReplaySample:
        """The items that start at rows `keys`."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
