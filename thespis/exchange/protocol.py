"""The protocol between a learner and the exchange that makes its gradients take effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from thespis.core.payloads import RoleState
from thespis.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class LeftGroup(Exception):
    """This learner is no longer a member of its group, and must enter again."""


class Replica(Protocol):
    """What an exchange sees of its learner: a state that it can send to an equal learner, or load."""

    @property
    def updates(self) -> int:
        """Number of updates of the weights."""

    async def snapshot(self) -> RoleState:
        """Everything that an equal learner needs to continue from here. The arrays may be those in use."""

    def restore(self, arrays: dict[str, Array], values: dict[str, object]) -> None:
        """Load what `state` returned."""


class Exchange(Protocol):
    """Applies gradients locally, combines them with those of other learners, or sends them to a parameter server.

    `begin` runs before the first batch, so that all learners start from the same parameters. Each batch is one call of
    `begin_batch` before its gradients are computed, one call of `apply` per gradient step, and `end_batch`.
    """

    shared: ClassVar[bool]
    """Whether equal learners apply the same gradients, so that they need `rows` and the statistics of all batches."""

    @property
    def leads(self) -> bool:
        """Whether this learner counts the updates of its weights; of several equal learners one does."""

    async def begin(self, replica: Replica) -> None:
        """Agree on the initial parameters. Also called to enter again after `LeftGroup`."""

    def begin_batch(self, steps: int) -> None:
        """Announce a batch of `steps` environment steps. Schedules follow the steps of all learners together."""

    async def end_batch(self) -> None:
        """Count the batch as learned, so that a checkpoint includes it. The learner's state is consistent here."""

    async def gather(self, statistics: Array) -> list[Array]:
        """The statistics of the batches of all equal learners, in a fixed order. Raises `LeftGroup`."""

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Apply one gradient step; returns whether the parameters changed, which makes a version. Raises `LeftGroup`.

        `rows`: number of rows that the loss is a mean of. None: this learner's gradients must not be applied. It still
        takes part, because other learners may wait for its vote.
        """

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""


class SingleLearner:
    """Base of exchanges of a single learner, which needs no statistics of others."""

    shared: ClassVar = False
    leads: ClassVar = True

    async def gather(self, statistics: Array) -> list[Array]:
        """Return this learner's statistics, which are all."""
        return [statistics]
