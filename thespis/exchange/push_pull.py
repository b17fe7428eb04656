"""Gradients go to a parameter server, newer parameters come back.

The parameters are one flat vector, cut into contiguous slices; each slice has a server of its own, with its own
version. A pull over several servers is not one moment: what a worker then holds has a version per slice.
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
from thespis.core.types import Array, Layout, Slice, Stamp, Version, Versioned, uncut
from thespis.exchange.precision import encode


class HasParameters(Protocol):
    """What is asked of a network: its parameters, in the order in which `state_dict` names them."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...


class PushPull:
    """A learner's side of the gradient edge. All shards are called at once; the slowest decides how long it takes."""

    def __init__(
        self,
        ctx: Context,
        network: HasParameters,
        joins: Sequence[Join],
        pushes: Sequence[Push],
        *,
        clip: float,
        dtype: str = "float32",
        by_steps: bool = True,
    ) -> None:
        """`by_steps`: where gradients are averaged, weigh this one by its steps, as befits a mean over them."""
        self._ctx, self._joins, self._pushes = ctx, joins, pushes
        self._clip, self._dtype, self._by_steps = clip, dtype, by_steps
        self._layout = layout(network)
        self._flat = flatten(network)
        self._bounds = cut(len(self._flat), len(pushes))
        self._versions: list[Version] = []
        self._number = self._clock = 0
        self._batch_steps = self._uncounted = 0

    @property
    def version(self) -> Version:
        return combined(self._versions)

    async def begin(self) -> None:
        """Take over what the servers hold. The first worker to come brings it; all have made the same from the seed."""
        self._versions = [Version(0, 0)] * len(self._bounds)
        calls = [self._ctx.ahead(self._join(shard)) for shard in range(len(self._bounds))]
        clocks = [await self._ctx.wait(join.name, call) for join, call in zip(self._joins, calls, strict=True)]
        self._clock = max(clocks)

    def begin_batch(self, steps: int) -> None:
        """The servers learn of these steps with the next push."""
        self._batch_steps = steps
        self._uncounted += steps

    def end_batch(self) -> None:
        """Steps count where the parameters are, with the gradients that they came with."""

    async def apply(self, gradients: list[Tensor] | None) -> bool:
        """Push, and adopt what comes back; False if the gradients were not finite and nothing was sent.

        A server waits for gradients and not for votes: without any, this worker goes on to its next batch.
        """
        if gradients is None:
            return False
        norm = clip_gradients(gradients, self._clip or math.inf)
        if not math.isfinite(norm):
            return False
        self._ctx.record("train/grad_norm", norm)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
        wire = encode(flat, self._dtype)
        self._number += 1
        self._clock += 1
        calls = [self._ctx.ahead(self._push(shard, wire, self._uncounted)) for shard in range(len(self._bounds))]
        for push, call in zip(self._pushes, calls, strict=True):
            await self._ctx.wait(push.name, call)
        self._uncounted = 0
        return True

    def state(self) -> dict[str, Array]:
        """Nothing: the servers hold everything."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None: ...

    async def _join(self, shard: int) -> int:
        mine = self._flat[self._bounds[shard]].copy()
        answer, clock = await self._joins[shard](self._ctx.identity.index, mine, self._layout)
        self._adopt(shard, answer)
        return clock

    async def _push(self, shard: int, wire: Array, steps: int) -> None:
        identity = self._ctx.identity
        stamp = Stamp(
            worker=identity.index,
            life=identity.incarnation,
            number=self._number,
            computed_at=self._versions[shard],
            steps=steps,
            weight=float(self._batch_steps) if self._by_steps else 1.0,
            clock=self._clock,
        )
        answer = await self._pushes[shard](wire[self._bounds[shard]], stamp)
        if answer is None:
            await self._join(shard)
        else:
            self._adopt(shard, answer)

    def _adopt(self, shard: int, answer: Slice) -> None:
        np.copyto(self._flat[self._bounds[shard]], answer.values)
        self._versions[shard] = answer.version


class PullAll:
    """Newer parameters from all shards, as weights by name: what a policy pulls that only acts."""

    def __init__(self, ctx: Context, network: HasParameters, pulls: Sequence[PullSlice]) -> None:
        self._ctx, self._pulls, self._layout = ctx, pulls, layout(network)
        self.name = pulls[0].name
        size = sum(math.prod(shape) for _, shape in self._layout)
        self._bounds = cut(size, len(pulls))
        self._flat: Array = np.empty(size, np.float32)
        self._versions: list[Version | None] = [None] * len(pulls)

    async def __call__(self, newer_than: Version | None) -> Versioned | None:
        """None if no shard has anything newer than at the last call."""
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
        return Versioned(combined(versions), uncut(self._flat, self._layout))


class PullAfter:
    """What `pull` gives, but nothing at all before so many updates were made."""

    def __init__(self, pull: PullAll, after: After, updates: int) -> None:
        self._pull, self._after, self._updates = pull, after, updates
        self.name = pull.name

    async def __call__(self, newer_than: Version | None) -> Versioned | None:
        if newer_than is None:
            await self._after(self._updates)
        return await self._pull(newer_than)


def combined(versions: Sequence[Version]) -> Version:
    """One version for all shards together, that rises whenever the version of any of them does."""
    return Version(sum(version.epoch for version in versions), sum(version.update for version in versions))


def cut(size: int, shards: int) -> list[slice]:
    """`shards` contiguous slices of a vector, equal but for one element."""
    if shards > size:
        raise ThespisError(f"{size} parameters cannot be cut into {shards} shards; use fewer --shards")
    bounds = [size * shard // shards for shard in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def layout(network: HasParameters) -> Layout:
    """Names and shapes of all parameters, in order; refuses a network that keeps something else besides."""
    held = network.state_dict()
    parameters = list(network.parameters())
    if len(held) != len(parameters) or any(value.dtype != torch.float32 for value in parameters):
        raise ThespisError(
            f"a parameter server holds float32 parameters and nothing else, but the network has {', '.join(held)}; "
            "use one without buffers"
        )
    return [(name, list(value.shape)) for name, value in held.items()]


def flatten(network: HasParameters) -> Array:
    """Move all parameters into one vector, of which they become views: writing it is loading weights."""
    with torch.no_grad():
        flat = torch.cat([parameter.reshape(-1) for parameter in network.parameters()])
        start = 0
        for parameter in network.parameters():
            end = start + parameter.numel()
            parameter.data = flat[start:end].view(parameter.shape)
            start = end
    array: Array = flat.numpy()
    return array
