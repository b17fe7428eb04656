"""Gradients are applied here, by this learner's own optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from thespis.algorithms.flat import decayed
from thespis.algorithms.optimizers import build_optimizer, clip_gradients, export_state, restore_state
from thespis.config import OptimizerConfig
from thespis.runtime.context import Context
from thespis.types import Array


class LocalExchange:
    """Clip, set the learning rate, step. One call is one update."""

    def __init__(self, ctx: Context, cfg: OptimizerConfig, parameters: Sequence[Tensor]) -> None:
        self._ctx, self._cfg = ctx, cfg
        self._optimizer = build_optimizer(cfg, parameters)

    async def begin(self) -> None:
        """Nobody else has a copy of these parameters."""

    async def apply(self, gradients: list[Tensor], progress: float, steps: int) -> bool:
        """Apply gradients at this share of the run; False if they were not finite and nothing was changed."""
        cfg = self._cfg
        async with self._ctx.work("apply"):
            norm = clip_gradients(gradients, cfg.clip or math.inf)
            if not math.isfinite(norm):
                return False
            rate = decayed(cfg.learning_rate, progress) if cfg.anneal else cfg.learning_rate
            self._optimizer.step(gradients, rate)
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", rate)
        return True

    def state(self) -> dict[str, Array]:
        return export_state(self._optimizer)

    def restore(self, arrays: dict[str, Array]) -> None:
        restore_state(self._optimizer, arrays)
