"""The protocol between a learner and an algorithm's update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Gradients(NamedTuple):
    """The result of an update on a batch.

    `values`: one tensor per parameter, in the order of the update's `parameters`. `metrics`: by name, empty unless
    requested. `priorities`: float32 `[N]`, one per item of a replay batch. `outlier`: the loss is unusually large, so
    the gradients must not be applied.
    """

    values: list[Tensor]
    metrics: dict[str, float]
    priorities: Array | None = None
    outlier: bool = False


Minibatches = Callable[[Any], Iterable[tuple[int, Any]]]
"""Splits a batch into parts, each with its number of rows. The learner requests a part after the previous step."""


class Update(Protocol):
    """Computes gradients of a network from batches. An exchange applies them."""

    @property
    def minibatches(self) -> Minibatches | None:
        """Splits a batch into parts for `gradients`, one gradient step each. None: `gradients` takes the whole batch.

        All steps together make one version, even if a step was not finite, because on-policy actors wait for the next
        version.
        """

    def gradients(self, batch: Any, want_metrics: bool) -> Gradients:
        """Compute gradients. Raises `NonFiniteLoss` if the loss is NaN or infinite."""

    def observe(self, batch: Any) -> None:
        """Update running statistics and target networks. Called once per batch, after its steps."""

    def weights(self) -> dict[str, Array]:
        """Copies of the weights, by name."""

    def load(self, weights: dict[str, Array]) -> None:
        """Set the weights."""

    def state(self) -> dict[str, Array]:
        """State to save besides the weights, such as target networks."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""


class SharedUpdate(Update, Protocol):
    """An update that several equal learners make together, each from its own batch.

    Their gradients are averaged by `rows`. Values of a loss that depend on the batches of all learners come from
    `statistics`: once per batch before its minibatches, and once per minibatch before its gradients.
    """

    def rows(self, part: Any) -> int:
        """The number of rows that the loss of a batch or minibatch is a mean of."""

    def statistics(self, part: Any) -> Array:
        """Statistics of a batch or minibatch that the learners must share; empty if there are none."""

    def merge(self, part: Any, statistics: Sequence[Array]) -> None:
        """Use the statistics of all learners, in a fixed order, for the gradients of `part`."""
