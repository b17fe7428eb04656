"""The local exchange: this learner's own optimiser applies the gradients."""

from __future__ import annotations

from torch import Tensor

from thespis.core.types import Array
from thespis.exchange.protocol import Replica, SingleLearner
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer


class LocalExchange(SingleLearner):
    """Apply gradients here. This is the only learner, so its steps are the steps of the run."""

    def __init__(self, optimizer: ScheduledOptimizer) -> None:
        self._optimizer = optimizer
        self._batch_steps = 0

    async def begin(self, replica: Replica) -> None:
        """Do nothing: no other process has a copy of these parameters."""

    def begin_batch(self, steps: int) -> None:
        """Fix the learning rate for all gradient steps of a batch."""
        self._optimizer.fix_rate()
        self._batch_steps = steps

    async def end_batch(self) -> None:
        """Count the steps of the batch."""
        self._optimizer.steps += self._batch_steps

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Apply the gradients; return False and change nothing if they are not finite."""
        return gradients is not None and await self._optimizer.apply(gradients)

    def state(self) -> dict[str, Array]:
        """Return the optimiser state and the progress of the run, for a checkpoint."""
        return self._optimizer.state()

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self._optimizer.restore(arrays)
