"""AveragingServer: a shard of the parameters that also keeps their lagged averages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.service import Method
from thespis.core.types import Array, Layout, Slice, Version
from thespis.roles.parameter_server import ParameterServer


class AveragingServer(ParameterServer):
    """Applies gradients as they come, and after each of them:

        average <- decay * average + (1 - decay) * parameters      (theta_bar_1 of QT-Opt, served by `pull`)
        lagged  <- average, every `lag` updates                    (theta_bar_2, served by `lagged`)

    Kept here, the chain is the same however many pull from it and however seldom. It is element by element, so shards
    together hold what one server would.
    """

    description: ClassVar = replace(
        ParameterServer.description,
        methods={
            **ParameterServer.description.methods,
            "lagged": Method("weights", gives="lagged weights"),
            "after": Method("weights", gives="go-ahead"),
        },
    )

    def __init__(self, ctx: Context, *, optimizer: OptimizerConfig, budget: Budget, decay: float, lag: int) -> None:
        super().__init__(ctx, optimizer=optimizer, budget=budget)
        self._decay, self._lag = decay, lag
        self._average: Array = np.empty(0, np.float32)
        self._lagged = Slice(self.version, self._average)

    async def join(self, worker: int, values: Array, layout: Layout) -> tuple[Slice, int]:
        opens = self._values is None
        answer = await super().join(worker, values, layout)
        if opens:
            self._average = answer[0].values.copy()
            self._keep()
        return answer

    async def pull(self, newer_than: Version | None) -> Slice | None:
        """The average, or None if the caller has it already: whoever only acts acts on this."""
        return None if await super().pull(newer_than) is None else Slice(self.version, self._average.copy())

    async def lagged(self, newer_than: Version | None) -> Slice | None:
        """The average as it was at the last multiple of `lag` updates; its version is of then."""
        if newer_than is None:
            await self._begun.wait()
        return self._lagged if newer_than is None or self._lagged.version > newer_than else None

    async def after(self, updates: int) -> None:
        """Return when so many updates were made."""
        while self._updates < updates:
            await self._round.wait()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, values = super().state()
        if arrays:
            arrays |= {"average": self._average.copy(), "lagged": self._lagged.values.copy()}
        return arrays, {**values, "lagged_at": self._lagged.version.update}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        super().restore(arrays, values)
        if "values" in arrays:
            self._average = arrays["average"]
            self._lagged = Slice(Version(self.version.epoch, values["lagged_at"]), arrays["lagged"])

    def _apply(self) -> None:
        super()._apply()
        assert self._values is not None
        self._average += np.float32(1.0 - self._decay) * (self._values - self._average)
        if self._updates % self._lag == 0:
            self._keep()

    def _keep(self) -> None:
        self._lagged = Slice(self.version, self._average.copy())
