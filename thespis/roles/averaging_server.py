"""AveragingServer: a shard of the parameters with their lagged averages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.service import Method
from thespis.core.types import Array, ParameterLayout, ParameterSlice, Version
from thespis.roles.parameter_server import ParameterServer


class AveragingServer(ParameterServer):
    """Applies each gradient when it arrives, then updates both averages:

        average <- decay * average + (1 - decay) * parameters      (theta_bar_1 of QT-Opt, served by `pull`)
        lagged  <- average, every `lag` updates                    (theta_bar_2, served by `lagged`)

    The server computes the averages, so they do not depend on how many workers pull or how often. The update is
    elementwise, so shards together hold the same values as one server.
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
        self._lagged = ParameterSlice(self.version, self._average)

    async def join(self, worker: int, values: Array, layout: ParameterLayout) -> tuple[ParameterSlice, int]:
        """Register a worker, as in `ParameterServer.join`. The first worker's values initialise both averages."""
        is_first = self._values is None
        joined = await super().join(worker, values, layout)
        if is_first:
            self._average = joined[0].values.copy()
            self._keep()
        return joined

    async def pull(self, newer_than: Version | None) -> ParameterSlice | None:
        """The average, which actors act on, or None if the caller has this version."""
        return None if await super().pull(newer_than) is None else ParameterSlice(self.version, self._average.copy())

    async def lagged(self, newer_than: Version | None) -> ParameterSlice | None:
        """The average at the last multiple of `lag` updates, with that update's version."""
        if newer_than is None:
            await self._begun.wait()
        return self._lagged if newer_than is None or self._lagged.version > newer_than else None

    async def after(self, updates: int) -> None:
        """Return once the server has made `updates` updates."""
        while self._updates < updates:
            await self._round.wait()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The shard's state and both averages."""
        arrays, values = super().state()
        if arrays:
            arrays |= {"average": self._average.copy(), "lagged": self._lagged.values.copy()}
        return arrays, {**values, "lagged_at": self._lagged.version.update}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        super().restore(arrays, values)
        if "values" in arrays:
            self._average = arrays["average"]
            self._lagged = ParameterSlice(Version(self.version.epoch, values["lagged_at"]), arrays["lagged"])

    def _apply(self) -> None:
        super()._apply()
        assert self._values is not None
        self._average += np.float32(1.0 - self._decay) * (self._values - self._average)
        if self._updates % self._lag == 0:
            self._keep()

    def _keep(self) -> None:
        self._lagged = ParameterSlice(self.version, self._average.copy())
