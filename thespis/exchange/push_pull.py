"""Push and pull: a worker pushes gradients to parameter servers and receives newer parameters.

The parameters are one flat vector, cut into contiguous slices. Each slice has its own server and its own version. A
pull over several servers is not atomic: a worker's copy has one version per slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.context import Context
from thespis.core.edges import After, Join, Push
from thespis.core.edges import PullSlice as PullSlice
from thespis.core.errors import ThespisError
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import GradientMessage
from thespis.core.types import (
    Array,
    GradientMeta,
    ParameterLayout,
    ParameterSlice,
    Version,
    VersionedWeights,
    unflatten_parameters,
)
from thespis.exchange.codecs import cut_sections
from thespis.exchange.compression import Compressor, refuse_rank
from thespis.exchange.protocol import Replica, SingleLearner


class HasParameters(Protocol):
    """A network whose `parameters` and `state_dict` have the same order."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""


class PushPull(SingleLearner):
    """A learner's side of the gradient edge. It calls all shards concurrently and waits for the slowest."""

    def __init__(
        self,
        ctx: Context,
        network: HasParameters,
        joins: Sequence[Join],
        pushes: Sequence[Push],
        *,
        clip: float,
        compression: CompressionConfig = UNCOMPRESSED,
        by_steps: bool = True,
    ) -> None:
        """`by_steps`: servers that average gradients weight this worker's by its batch size.

        `compression`: of pushed gradients.
        """
        self._ctx, self._joins, self._pushes = ctx, joins, pushes
        self._clip, self._by_steps = clip, by_steps
        self._layout = parameter_layout(network)
        self._flat = flatten_parameters(network)
        self._bounds = cut_slices(len(self._flat), len(pushes))
        self._compressors: list[Compressor] = []  # one per shard, none if gradients are float32
        if compression.compresses:
            sections = [cut_sections(self._layout, bounds) for bounds in self._bounds]
            refuse_rank(compression, sections)
            self._compressors = [Compressor(ctx, compression, part) for part in sections]
        self._versions: list[Version] = []
        self._number = self._clock = 0
        self._batch_steps = self._uncounted = 0

    @property
    def version(self) -> Version:
        """The combined version of the worker's copy."""
        return combined_version(self._versions)

    async def begin(self, replica: Replica) -> None:
        """Copy the servers' parameters. The first to join sets them; all workers build equal ones from the seed."""
        self._versions = [Version(0, 0)] * len(self._bounds)
        calls = [self._ctx.ahead(self._join(shard)) for shard in range(len(self._bounds))]
        clocks = [await self._ctx.wait(join.name, call) for join, call in zip(self._joins, calls, strict=True)]
        self._clock = max(clocks)

    def begin_batch(self, steps: int) -> None:
        """Add the steps of a batch; the next push reports them to the servers."""
        self._batch_steps = steps
        self._uncounted += steps

    async def end_batch(self) -> None:
        """Do nothing: the servers count steps with the gradients."""

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Push and adopt the returned parameters; return False and send nothing if the gradients are not finite.

        A server waits for gradients, not for votes: without finite gradients this worker continues with its next batch.
        """
        if gradients is None:
            return False
        norm = clip_gradients(gradients, self._clip or math.inf)
        if not math.isfinite(norm):
            return False
        self._ctx.record("train/grad_norm", norm)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
        messages = await self._encode(flat)
        self._number += 1
        self._clock += 1
        calls = [self._ctx.ahead(self._push(shard, each, self._uncounted)) for shard, each in enumerate(messages)]
        for push, call in zip(self._pushes, calls, strict=True):
            await self._ctx.wait(push.name, call)
        self._uncounted = 0
        return True

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

    async def _encode(self, flat: Array) -> list[GradientMessage]:
        """The message for each shard. An encoded gradient counts as delivered, so that nothing is ever sent twice."""
        parts: list[GradientMessage] = [flat[bounds] for bounds in self._bounds]
        if not self._compressors:
            return parts
        async with self._ctx.work("compress", items=len(flat)):
            for shard, compressor in enumerate(self._compressors):
                parts[shard] = compressor.encode(flat[self._bounds[shard]])
                compressor.commit()
        return parts

    async def _join(self, shard: int) -> int:
        mine = self._flat[self._bounds[shard]].copy()
        answer, clock = await self._joins[shard](self._ctx.identity.index, mine, self._layout)
        self._adopt(shard, answer)
        return clock

    async def _push(self, shard: int, gradient: GradientMessage, steps: int) -> None:
        identity = self._ctx.identity
        meta = GradientMeta(
            worker=identity.index,
            incarnation=identity.incarnation,
            number=self._number,
            computed_at=self._versions[shard],
            steps=steps,
            weight=float(self._batch_steps) if self._by_steps else 1.0,
            clock=self._clock,
        )
        answer = await self._pushes[shard](gradient, meta)
        if answer is None:
            await self._join(shard)
        else:
            self._adopt(shard, answer)

    def _adopt(self, shard: int, answer: ParameterSlice) -> None:
        np.copyto(self._flat[self._bounds[shard]], answer.values)
        self._versions[shard] = answer.version


class PullAll:
    """Pulls newer parameters from all shards, as weights by name, for a policy that only acts."""

    def __init__(self, ctx: Context, network: HasParameters, pulls: Sequence[PullSlice]) -> None:
        self._ctx, self._pulls, self._layout = ctx, pulls, parameter_layout(network)
        self.name = pulls[0].name
        size = sum(math.prod(shape) for _, shape in self._layout)
        self._bounds = cut_slices(size, len(pulls))
        self._flat: Array = np.empty(size, np.float32)
        self._versions: list[Version | None] = [None] * len(pulls)

    async def __call__(self, newer_than: Version | None) -> VersionedWeights | None:
        """Return None if no shard has a newer version than at the last call."""
        calls = [self._ctx.ahead(pull(have)) for pull, have in zip(self._pulls, self._versions, strict=True)]
        changed = False
        for shard, call in enumerate(calls):
            answer = await self._ctx.wait(self._pulls[shard].name, call)
            if answer is not None:
                np.copyto(self._flat[self._bounds[shard]], answer.values)
                self._versions[shard], changed = answer.version, True
        if not changed:
            return None
        versions = [version for version in self._versions if version is not None]
        return VersionedWeights(combined_version(versions), unflatten_parameters(self._flat, self._layout))


class PullAfter:
    """A `pull` whose first call waits until `updates` updates were made."""

    def __init__(self, pull: PullAll, after: After, updates: int) -> None:
        self._pull, self._after, self._updates = pull, after, updates
        self.name = pull.name

    async def __call__(self, newer_than: Version | None) -> VersionedWeights | None:
        if newer_than is None:
            await self._after(self._updates)
        return await self._pull(newer_than)


def combined_version(versions: Sequence[Version]) -> Version:
    """Return one version for all shards. It increases whenever the version of any shard increases."""
    return Version(sum(version.epoch for version in versions), sum(version.update for version in versions))


def cut_slices(size: int, shards: int) -> list[slice]:
    """Return `shards` contiguous slices of a vector, whose lengths differ by at most one."""
    if shards > size:
        raise ThespisError(f"{size} parameters cannot be cut into {shards} shards; use fewer --shards")
    bounds = [size * shard // shards for shard in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def parameter_layout(network: HasParameters) -> ParameterLayout:
    """Return names and shapes of all parameters, in order. Refuse a network with buffers or other dtypes."""
    held = network.state_dict()
    parameters = list(network.parameters())
    if len(held) != len(parameters) or any(value.dtype != torch.float32 for value in parameters):
        raise ThespisError(
            f"a parameter server holds float32 parameters and nothing else, but the network has {', '.join(held)}; "
            "use one without buffers"
        )
    return [(name, list(value.shape)) for name, value in held.items()]


def flatten_parameters(network: HasParameters) -> Array:
    """Move all parameters into one vector and make them views of it: writing the vector loads weights."""
    with torch.no_grad():
        flat = torch.cat([parameter.reshape(-1) for parameter in network.parameters()])
        start = 0
        for parameter in network.parameters():
            end = start + parameter.numel()
            parameter.data = flat[start:end].view(parameter.shape)
            start = end
    array: Array = flat.numpy()
    return array
