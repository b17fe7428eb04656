"""The optimiser of a learner that holds all parameters, with its gradient clip and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thespis.algorithms.updates.flat import decayed
from thespis.algorithms.updates.optimizers import build_optimizer, clip_gradients, export_state, restore_state
from thespis.core.budget import Budget, Progress
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.types import Array


class ScheduledOptimizer:
    """Clip, set the learning rate, step. An exchange counts the steps of the run and fixes `fraction` for a batch."""

    def __init__(self, ctx: Context, cfg: OptimizerConfig, parameters: Sequence[Tensor], budget: Budget) -> None:
        self._ctx, self._cfg, self._progress = ctx, cfg, Progress(budget, ctx.now)
        self._optimizer = build_optimizer(cfg, parameters)
        self.steps = 0
        """Environment steps of the batches learned so far."""
        self.fraction = 0.0
        """Used fraction of the budget, which sets the learning rate."""

    def fix_rate(self) -> None:
        """Fix the learning rate for all gradient steps of the next batch."""
        self.fraction = self._progress.fraction(self.steps)

    async def apply(self, gradients: list[Tensor]) -> bool:
        """Apply the gradients; return False and change nothing if they are not finite."""
        async with self._ctx.work("apply"):
            norm = clip_gradients(gradients, self.clip)
            if not math.isfinite(norm):
                return False
            rate = self._rate()
            self._optimizer.step(gradients, rate)
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", rate)
        return True

    async def whole(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return one whole tensor per parameter; `gradients` are of the parts that this learner holds: here all."""
        return gradients

    async def apply_whole(self, gradients: list[Tensor]) -> bool:
        """Apply gradients that `whole` returned, or their combination with those of other learners."""
        return await self.apply(gradients)

    @property
    def clip(self) -> float:
        """The largest norm of a gradient."""
        return self._cfg.clip or math.inf

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that this learner holds."""
        return list(self._optimizer.parameters)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all parameters, whole."""
        return [tuple(parameter.shape) for parameter in self._optimizer.parameters]

    def state(self) -> dict[str, Array]:
        """Return the optimiser state and the progress of the run, for a checkpoint or for an equal learner."""
        counted = {"steps": np.array(self.steps), "seconds": np.array(self._progress.seconds)}
        return export_state(self._optimizer) | counted

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        restore_state(self._optimizer, arrays)
        self.steps = int(arrays["steps"])
        self._progress.seconds = float(arrays.get("seconds", 0.0))  # older checkpoints do not have it

    def _rate(self) -> float:
        """The learning rate of the current batch."""
        cfg = self._cfg
        return decayed(cfg.learning_rate, self.fraction) if cfg.anneal else cfg.learning_rate
