"""Push and pull: a worker pushes gradients to parameter servers and receives newer parameters.

A pull over several servers is not atomic: a worker's copy has one version per slice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.context import Context
from thespis.core.edges import After, ServerEdges
from thespis.core.edges import PullSlice as PullSlice
from thespis.core.errors import ThespisError
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import Member
from thespis.core.types import Array, ParameterLayout, Version, VersionedWeights, unflatten_parameters
from thespis.exchange.heartbeats import send_heartbeats
from thespis.exchange.parameter_client import ParameterClient, combined_version, cut_slices
from thespis.exchange.protocol import Replica, SingleLearner


class HasParameters(Protocol):
    """A network whose `parameters` and `state_dict` have the same order."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""


class PushPull(SingleLearner):
    """A learner's side of the gradient edge: to all parameter servers, or to the aggregator of its node."""

    def __init__(
        self,
        ctx: Context,
        network: HasParameters,
        servers: ServerEdges,
        *,
        clip: float,
        compression: CompressionConfig = UNCOMPRESSED,
        by_steps: bool = True,
    ) -> None:
        """`by_steps`: an average of several gradients weights this worker's by its batch size.

        `compression`: of pushed gradients.
        """
        self._ctx, self._servers, self._clip, self._by_steps = ctx, servers, clip, by_steps
        layout = parameter_layout(network)
        self._client = ParameterClient(ctx, flatten_parameters(network), layout, servers, compression)
        self._heartbeats: asyncio.Future[None] | None = None
        self._batch_steps = self._uncounted = 0

    @property
    def version(self) -> Version:
        """The combined version of the worker's copy."""
        return self._client.version

    async def begin(self, replica: Replica) -> None:
        """Copy the servers' parameters. The first to join sets them; all workers build equal ones from the seed."""
        await self._client.join()
        if self._servers.heartbeat is not None and self._heartbeats is None:
            member = Member(self._ctx.identity.index, self._ctx.identity.incarnation)
            self._heartbeats = self._ctx.ahead(send_heartbeats(self._ctx, self._servers.heartbeat, member))

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
        await self._client.push(flat, self._uncounted, float(self._batch_steps) if self._by_steps else 1.0)
        self._uncounted = 0
        return True

    def state(self) -> dict[str, Array]:
        """Return the error memory of compressed gradients; the servers hold all other state."""
        return self._client.state()

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        self._client.restore(arrays)


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
