"""Gradients are applied here, by this learner's own optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thespis.algorithms.updates.flat import decayed
from thespis.algorithms.updates.optimizers import build_optimizer, clip_gradients, export_state, restore_state
from thespis.core.budget import Budget, Spending
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.types import Array


class LocalExchange:
    """Clip, set the learning rate, step. The one learner's steps are all there are."""

    def __init__(self, ctx: Context, cfg: OptimizerConfig, parameters: Sequence[Tensor], budget: Budget) -> None:
        self._ctx, self._cfg, self._spending = ctx, cfg, Spending(budget, ctx.now)
        self._optimizer = build_optimizer(cfg, parameters)
        self._steps = self._batch_steps = 0
        self._progress = 0.0

    async def begin(self) -> None:
        """Nobody else has a copy of these parameters."""

    def begin_batch(self, steps: int) -> None:
        """All gradient steps of a batch have the learning rate of its start."""
        self._progress, self._batch_steps = self._spending.share(self._steps), steps

    def end_batch(self) -> None:
        self._steps += self._batch_steps

    async def apply(self, gradients: list[Tensor] | None) -> bool:
        """False if the gradients were not finite and nothing was changed."""
        if gradients is None:
            return False
        cfg = self._cfg
        async with self._ctx.work("apply"):
            norm = clip_gradients(gradients, cfg.clip or math.inf)
            if not math.isfinite(norm):
                return False
            rate = decayed(cfg.learning_rate, self._progress) if cfg.anneal else cfg.learning_rate
            self._optimizer.step(gradients, rate)
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", rate)
        return True

    def state(self) -> dict[str, Array]:
        counted = {"steps": np.array(self._steps), "seconds": np.array(self._spending.seconds)}
        return export_state(self._optimizer) | counted

    def restore(self, arrays: dict[str, Array]) -> None:
        restore_state(self._optimizer, arrays)
        self._steps = int(arrays["steps"])
        self._spending.seconds = float(arrays.get("seconds", 0.0))  # runs of before had none
