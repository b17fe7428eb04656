"""SharedParameters: makes the memory in which Hogwild workers change the parameters, and keeps it safe."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np

from thespis.algorithms.updates.flat import build_flat
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.messages import Place
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Layout, Slice, Version
from thespis.exchange.shared import Block


class SharedParameters:
    """Parameters and the optimiser's statistics in one block of shared memory. It hands out the place, and reads.

    Workers write without a lock, so a copy taken here may hold half of an update. So may every worker's.
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
        self._layout: Layout = []
        self._block: Block | None = None
        self._begun = asyncio.Event()

    async def join(self, worker: int, values: Array, layout: Layout) -> Place:
        """Where the parameters are. The first worker's values are what everybody starts from."""
        if self._block is None:
            self._layout = layout
            self._make(values)
        assert self._block is not None
        return self._block.place

    async def pull(self, newer_than: Version | None) -> Slice | None:
        """The parameters as they stand, or None if no update was made since."""
        if newer_than is None:
            await self._begun.wait()
        if self._block is None:
            return None
        version = Version(self._ctx.identity.epoch, int(self._block.arrays["updates"].sum()))
        if newer_than is not None and version <= newer_than:
            return None
        return Slice(version, self._block.arrays["values"].copy())

    async def close(self) -> None:
        if self._block is not None:
            self._block.close()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = self._block.arrays if self._block is not None else {}
        return {name: array.copy() for name, array in arrays.items()}, {"layout": self._layout}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        if "values" in arrays:
            self._layout = [(name, list(shape)) for name, shape in values["layout"]]
            self._make(arrays["values"])
            assert self._block is not None
            for name, array in self._block.arrays.items():
                if name in arrays:  # runs of before had no seconds
                    array[:] = arrays[name]

    def _make(self, values: Array) -> None:
        slots = build_flat(self._cfg, len(values)).slots
        self._block = Block(
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
