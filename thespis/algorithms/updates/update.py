"""What a learner asks of an algorithm, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Gradients(NamedTuple):
    """What an update found in a batch.

    `values`: one tensor per parameter, in the order of the update's `parameters`. `metrics`: by name, empty unless
    wanted. `priorities`: float32 `[N]`, one per item of a batch from a replay. `outlier`: the loss is far above its
    usual range, so the gradients must not be applied.
    """

    values: list[Tensor]
    metrics: dict[str, float]
    priorities: Array | None = None
    outlier: bool = False


Minibatches = Callable[[Any], Iterable[tuple[int, Any]]]
"""Parts of a batch, each with the number of rows in it. The next part is asked for after the step of the one before."""


class Update(Protocol):
    """The algorithm and its network: batches to gradients. It never applies them."""

    @property
    def minibatches(self) -> Minibatches | None:
        """The parts of a batch that `gradients` takes, one gradient step each. None: it takes the whole batch.

        All steps together are one version, even if one of them was not finite: actors of an on-policy algorithm wait
        for the next version.
        """

    def gradients(self, batch: Any, want_metrics: bool) -> Gradients:
        """Raises NonFiniteLoss instead of returning gradients of a loss that is NaN or infinite."""

    def observe(self, batch: Any) -> None: ...

    def weights(self) -> dict[str, Array]: ...

    def load(self, weights: dict[str, Array]) -> None: ...

    def state(self) -> dict[str, Array]: ...

    def restore(self, arrays: dict[str, Array]) -> None: ...
