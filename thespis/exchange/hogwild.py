"""Hogwild (Recht et al., 2011), as A3C used it: gradients are applied in place to parameters that all workers share.

No lock and no message. Two workers may read and write the same numbers at once; what is lost by that is little
beside what no waiting gains, as long as steps are small.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.updates.flat import Flat, build_flat, decayed
from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.budget import Budget, Spending
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.edges import JoinShared
from thespis.core.types import Array, Version
from thespis.exchange.push_pull import HasParameters, flatten, layout
from thespis.exchange.shared import attach


class Hogwild:
    """A learner's own copy of the parameters, and the shared ones that it changes without asking anybody.

    Each worker counts its updates, steps and seconds in a place of its own, so that at least these are exact.
    """

    def __init__(
        self, ctx: Context, network: HasParameters, cfg: OptimizerConfig, join: JoinShared, budget: Budget
    ) -> None:
        self._ctx, self._cfg, self._join, self._spending = ctx, cfg, join, Spending(budget, ctx.now)
        self._layout, self._flat = layout(network), flatten(network)
        self._optimizer: Flat = build_flat(cfg, len(self._flat))
        self._shared: dict[str, Array] = {}
        self._seen = 0
        self._batch_steps = self._uncounted = 0

    @property
    def version(self) -> Version:
        return Version(0, self._seen)

    async def begin(self) -> None:
        place = await self._join(self._ctx.identity.index, self._flat.copy(), self._layout)
        self._shared = attach(place)
        self._optimizer.slots = {name: self._shared[f"optimizer/{name}"] for name in self._optimizer.slots}
        self._spending.seconds = float(self._shared["seconds"].max())
        self._adopt()

    def begin_batch(self, steps: int) -> None:
        """Others see these steps with the next gradients."""
        self._batch_steps = steps
        self._uncounted += steps

    def end_batch(self) -> None:
        """Steps count where the parameters are, with the gradients that they came with."""

    async def apply(self, gradients: list[Tensor] | None) -> bool:
        """Change the shared parameters in place, then copy them; False if the gradients were not finite."""
        if gradients is None:
            return False
        shared, me = self._shared, self._ctx.identity.index
        async with self._ctx.work("apply", items=len(self._flat)):
            norm = clip_gradients(gradients, self._cfg.clip or math.inf)
            if not math.isfinite(norm):
                return False
            shared["steps"][me] += self._uncounted
            self._uncounted = 0
            rate = self._cfg.learning_rate
            if self._cfg.anneal:
                rate = decayed(rate, self._spending.share(int(shared["steps"].sum())))
                shared["seconds"][me] = self._spending.seconds
            behind = int(shared["updates"].sum()) - self._seen
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
            self._optimizer.step(shared["values"], flat, rate)
            shared["updates"][me] += 1
            self._adopt()
        self._ctx.count("updates")
        self._ctx.lag(np.array([behind]), weight=max(1, self._batch_steps))
        self._ctx.record("train/grad_norm", norm)
        self._ctx.record("train/learning_rate", rate)
        return True

    def state(self) -> dict[str, Array]:
        """Nothing: whoever made the block saves it."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None: ...

    def _adopt(self) -> None:
        self._seen = int(self._shared["updates"].sum())
        np.copyto(self._flat, self._shared["values"])
