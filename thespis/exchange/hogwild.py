"""Hogwild (Recht et al., 2011), as A3C uses it: workers apply gradients in place to shared parameters.

There is no lock and no message. Two workers may read and write the same parameter at once; with small steps, the few
lost writes cost less than waiting would.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.updates.flat import Flat, build_flat, decayed
from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.budget import Budget, Progress
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.edges import JoinShared
from thespis.core.types import Array, Version
from thespis.exchange.protocol import Replica, SingleLearner
from thespis.exchange.push_pull import HasParameters, flatten_parameters, parameter_layout
from thespis.exchange.shared import attach


class Hogwild(SingleLearner):
    """A learner's copy of the parameters, and the shared parameters that it updates without a lock.

    Each worker counts its updates, steps and seconds in its own array entry, so these counts are exact.
    """

    def __init__(
        self, ctx: Context, network: HasParameters, cfg: OptimizerConfig, join: JoinShared, budget: Budget
    ) -> None:
        self._ctx, self._cfg, self._join, self._progress = ctx, cfg, join, Progress(budget, ctx.now)
        self._layout, self._flat = parameter_layout(network), flatten_parameters(network)
        self._optimizer: Flat = build_flat(cfg, len(self._flat))
        self._shared: dict[str, Array] = {}
        self._seen = 0
        self._batch_steps = self._uncounted = 0

    @property
    def version(self) -> Version:
        """The number of updates in the local copy."""
        return Version(0, self._seen)

    async def begin(self, replica: Replica) -> None:
        """Map the shared parameters and copy them."""
        address = await self._join(self._ctx.identity.index, self._flat.copy(), self._layout)
        self._shared = attach(address)
        self._optimizer.slots = {name: self._shared[f"optimizer/{name}"] for name in self._optimizer.slots}
        self._progress.seconds = float(self._shared["seconds"].max())
        self._adopt()

    def begin_batch(self, steps: int) -> None:
        """Add the steps of a batch; other workers see them with the next gradients."""
        self._batch_steps = steps
        self._uncounted += steps

    async def end_batch(self) -> None:
        """Do nothing: steps are counted with the gradients, in shared memory."""

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Update the shared parameters in place, then copy them; return False if the gradients are not finite."""
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
                rate = decayed(rate, self._progress.fraction(int(shared["steps"].sum())))
                shared["seconds"][me] = self._progress.seconds
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
        """Return nothing: the role that owns the shared block saves it."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Do nothing: the role that owns the shared block restores it."""

    def _adopt(self) -> None:
        self._seen = int(self._shared["updates"].sum())
        np.copyto(self._flat, self._shared["values"])
