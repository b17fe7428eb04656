"""The local exchange: this learner's own optimiser applies the gradients."""

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
from thespis.exchange.protocol import Alone, Replica


class LocalExchange(Alone):
    """Clip, set the learning rate, step. This is the only learner, so its steps are the steps of the run."""

    def __init__(self, ctx: Context, cfg: OptimizerConfig, parameters: Sequence[Tensor], budget: Budget) -> None:
        self._ctx, self._cfg, self._progress = ctx, cfg, Progress(budget, ctx.now)
        self._optimizer = build_optimizer(cfg, parameters)
        self._steps = self._batch_steps = 0
        self._fraction = 0.0

    async def begin(self, replica: Replica) -> None:
        """Do nothing: no other process has a copy of these parameters."""

    def begin_batch(self, steps: int) -> None:
        """Fix the learning rate for all gradient steps of a batch."""
        self._fraction, self._batch_steps = self._progress.fraction(self._steps), steps

    async def end_batch(self) -> None:
        """Count the steps of the batch."""
        self._steps += self._batch_steps

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Apply the gradients; return False and change nothing if they are not finite."""
        if gradients is None:
            return False
        cfg = self._cfg
        async with self._ctx.work("apply"):
            norm = clip_gradients(gradients, cfg.clip or math.inf)
            if not math.isfinite(norm):
                return False
            rate = decayed(cfg.learning_rate, self._fraction) if cfg.anneal else cfg.learning_rate
            self._optimizer.step(gradients, rate)
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", rate)
        return True

    def state(self) -> dict[str, Array]:
        """Return the optimiser state and the progress of the run, for a checkpoint."""
        counted = {"steps": np.array(self._steps), "seconds": np.array(self._progress.seconds)}
        return export_state(self._optimizer) | counted

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        restore_state(self._optimizer, arrays)
        self._steps = int(arrays["steps"])
        self._progress.seconds = float(arrays.get("seconds", 0.0))  # older checkpoints do not have it
