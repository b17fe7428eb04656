"""The optimiser of a learner that holds a part of the parameters; its shards have optimisers for the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.exchange.shards import ShardGroup
from thespis.networks.partition import StateLayout


class ShardedOptimizer(ScheduledOptimizer):
    """Clips by the norm of all parts together, and lets the shards step with the same learning rate and scale."""

    def __init__(
        self,
        ctx: Context,
        cfg: OptimizerConfig,
        parameters: Sequence[Tensor],
        budget: Budget,
        shards: ShardGroup,
        layout: StateLayout,
    ) -> None:
        """`parameters`: the learner's pieces."""
        super().__init__(ctx, cfg, parameters, budget)
        self._shards, self._layout = shards, layout

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all parameters, whole."""
        return self._layout.shapes(super().shapes)

    async def whole(self, gradients: list[Tensor]) -> list[Tensor]:
        """Collect the gradients of the shards; return one whole tensor per parameter."""
        others = await self._shards.gradients()
        joined = self._layout.join_gradients([gradient.numpy() for gradient in gradients], others)
        return [torch.from_numpy(array) for array in joined]

    async def apply(self, gradients: list[Tensor]) -> bool:
        """Apply the learner's pieces here, and those of the shards there."""
        async with self._shards.lock, self._ctx.work("apply"):
            own = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
            norm = math.hypot(own, *await self._shards.norms())
            if not math.isfinite(norm):
                return False
            scale = self.clip / norm if norm > self.clip else 1.0
            if scale != 1.0:
                torch._foreach_mul_(gradients, scale)
            self._shards.step(self._rate(), scale, self._shards.unloaded)
            await self._finish(gradients, norm)
        return True

    async def apply_whole(self, gradients: list[Tensor]) -> bool:
        """Apply whole gradients, as `whole` returns them: send each shard its pieces."""
        async with self._shards.lock, self._ctx.work("apply"):
            norm = clip_gradients(gradients, self.clip)
            if not math.isfinite(norm):
                return False
            own, others = self._layout.split_gradients([gradient.numpy() for gradient in gradients])
            self._shards.step(self._rate(), 1.0, others)
            await self._finish([torch.from_numpy(array) for array in own], norm)
        return True

    async def _finish(self, gradients: list[Tensor], norm: float) -> None:
        """Step after the shards have been told to. Nothing is awaited in between, so that none is without the other."""
        self._optimizer.step(gradients, self._rate())
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", self._rate())
        await self._shards.settle()
