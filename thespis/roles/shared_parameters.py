"""SharedParameters: owns the shared memory that Hogwild workers update."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np

from thespis.algorithms.updates.flat import build_flat
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.payloads import BlockAddress
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, ParameterLayout, ParameterSlice, Version
from thespis.exchange.shared import SharedBlock


class SharedParameters:
    """Parameters and optimiser statistics in one block of shared memory. Serves its address and copies of it.

    Workers write without a lock, so a copy may hold half of an update, here as in every worker.
    """

    description: ClassVar = RoleDescription(
        methods={
            "join": Method("weights", takes="initial weights", gives="shared memory"),
            "pull": Method("weights", gives="weights"),
        },
        publishes=True,
    )

    def __init__(self, ctx: Context, *, optimizer: OptimizerConfig, workers: int) -> None:
        self._ctx, self._cfg, self._workers = ctx, optimizer, workers
        self._layout: ParameterLayout = []
        self._block: SharedBlock | None = None
        self._begun = asyncio.Event()

    async def join(self, worker: int, values: Array, layout: ParameterLayout) -> BlockAddress:
        """Return the address of the shared memory. The first worker's values initialise it."""
        if self._block is None:
            self._layout = layout
            self._make(values)
        assert self._block is not None
        return self._block.address

    async def pull(self, newer_than: Version | None) -> ParameterSlice | None:
        """The current parameters, or None if there is no update since `newer_than`."""
        if newer_than is None:
            await self._begun.wait()
        if self._block is None:
            return None
        version = Version(self._ctx.identity.epoch, int(self._block.arrays["updates"].sum()))
        if newer_than is not None and version <= newer_than:
            return None
        return ParameterSlice(version, self._block.arrays["values"].copy())

    async def close(self) -> None:
        """Release the shared memory."""
        if self._block is not None:
            self._block.close()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all shared arrays, and the layout."""
        arrays = self._block.arrays if self._block is not None else {}
        return {name: array.copy() for name, array in arrays.items()}, {"layout": self._layout}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        if "values" in arrays:
            self._layout = [(name, list(shape)) for name, shape in values["layout"]]
            self._make(arrays["values"])
            assert self._block is not None
            for name, array in self._block.arrays.items():
                if name in arrays:  # checkpoints of older runs have no seconds
                    array[:] = arrays[name]

    def _make(self, values: Array) -> None:
        slots = build_flat(self._cfg, len(values)).slots
        self._block = SharedBlock(
            [
                ("updates", "int64", self._workers),
                ("steps", "int64", self._workers),
                ("seconds", "float64", self._workers),
                ("values", "float32", len(values)),
                *((f"optimizer/{name}", str(slot.dtype), len(slot)) for name, slot in slots.items()),
            ]
        )
        np.copyto(self._block.arrays["values"], values)
        for name, slot in slots.items():
            np.copyto(self._block.arrays[f"optimizer/{name}"], slot)
        self._begun.set()
