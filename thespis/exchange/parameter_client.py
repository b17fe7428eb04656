"""ParameterClient: a copy of the parameters of all servers, which pushes gradients and receives newer parameters.

The parameters are one flat vector, cut into contiguous slices. Each slice has its own server and its own version. The
client calls all servers concurrently and waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import GradientMessage
from thespis.core.types import Array, GradientMeta, ParameterLayout, ParameterSlice, Version
from thespis.exchange.codecs import cut_sections
from thespis.exchange.compression import Compressor, refuse_rank


class ParameterClient:
    """Pushes gradients of the parameters in `values`, and writes the servers' parameters there.

    A push is identified by the role, its incarnation and a number, so that a server recognises a repeated one.
    """

    def __init__(
        self,
        ctx: Context,
        values: Array,
        layout: ParameterLayout,
        servers: ServerEdges,
        compression: CompressionConfig = UNCOMPRESSED,
    ) -> None:
        """`compression`: of pushed gradients."""
        self._ctx, self._servers = ctx, servers
        self._values, self._layout = values, layout
        self._bounds = cut_slices(len(values), len(servers.pushes))
        self._compressors: list[Compressor] = []  # one per shard, none if gradients are float32
        if compression.compresses:
            sections = [cut_sections(layout, bounds) for bounds in self._bounds]
            refuse_rank(compression, sections)
            self._compressors = [Compressor(ctx, compression, part) for part in sections]
        self._versions: list[Version] = []
        self._number = self._clock = 0

    @property
    def version(self) -> Version:
        """The combined version of the copy."""
        return combined_version(self._versions)

    async def join(self) -> None:
        """Copy the servers' parameters. The first client to join sets them."""
        self._versions = [Version(0, 0)] * len(self._bounds)
        calls = [self._ctx.ahead(self._join(shard)) for shard in range(len(self._bounds))]
        clocks = [await self._ctx.wait(join.name, call) for join, call in zip(self._servers.joins, calls, strict=True)]
        self._clock = max(clocks)

    async def push(self, gradient: Array, steps: int, weight: float) -> None:
        """Push a finite gradient and adopt the returned parameters. `weight`: in an average of several gradients."""
        messages = await self._encode(gradient)
        self._number += 1
        self._clock += 1
        calls = [self._ctx.ahead(self._push(shard, each, steps, weight)) for shard, each in enumerate(messages)]
        for push, call in zip(self._servers.pushes, calls, strict=True):
            await self._ctx.wait(push.name, call)

    def state(self) -> dict[str, Array]:
        """Return the error memory of compressed gradients; the servers hold all other state."""
        return {
            f"compression/{shard}/{name}": array
            for shard, compressor in enumerate(self._compressors)
            for name, array in compressor.state().items()
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        for shard, compressor in enumerate(self._compressors):
            start = f"compression/{shard}/"
            compressor.restore({name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)})

    async def _encode(self, gradient: Array) -> list[GradientMessage]:
        """The message for each shard. An encoded gradient counts as delivered, so that nothing is ever sent twice."""
        parts: list[GradientMessage] = [gradient[bounds] for bounds in self._bounds]
        if not self._compressors:
            return parts
        async with self._ctx.work("compress", items=len(gradient)):
            for shard, compressor in enumerate(self._compressors):
                parts[shard] = compressor.encode(gradient[self._bounds[shard]])
                compressor.commit()
        return parts

    async def _join(self, shard: int) -> int:
        mine = self._values[self._bounds[shard]].copy()
        answer, clock = await self._servers.joins[shard](self._ctx.identity.index, mine, self._layout)
        self._adopt(shard, answer)
        return clock

    async def _push(self, shard: int, gradient: GradientMessage, steps: int, weight: float) -> None:
        identity = self._ctx.identity
        meta = GradientMeta(
            worker=identity.index,
            incarnation=identity.incarnation,
            number=self._number,
            computed_at=self._versions[shard],
            steps=steps,
            weight=weight,
            clock=self._clock,
        )
        answer = await self._servers.pushes[shard](gradient, meta)
        if answer is None:
            await self._join(shard)
        else:
            self._adopt(shard, answer)

    def _adopt(self, shard: int, answer: ParameterSlice) -> None:
        np.copyto(self._values[self._bounds[shard]], answer.values)
        self._versions[shard] = answer.version


def combined_version(versions: Sequence[Version]) -> Version:
    """Return one version for all shards. It increases whenever the version of any shard increases."""
    return Version(sum(version.epoch for version in versions), sum(version.update for version in versions))


def cut_slices(size: int, shards: int) -> list[slice]:
    """Return `shards` contiguous slices of a vector, whose lengths differ by at most one."""
    if shards > size:
        raise ThespisError(f"{size} parameters cannot be cut into {shards} shards; use fewer --shards")
    bounds = [size * shard // shards for shard in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]
