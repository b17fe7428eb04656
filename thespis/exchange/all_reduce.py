"""All-reduce: several learners combine their gradients, and each applies the result with its own optimiser.

All learners start with equal weights and apply equal gradients, so their weights and optimiser states stay equal to the
bit, without ever being sent. The `LearnerGroup` role decides who takes part; it sends the state of one learner to a
newcomer.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.updates.optimizers import clip_gradients
from thespis.core.context import Context
from thespis.core.edges import GroupEdges
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import Combined, Contribution, GradientMessage, Member, RoleState
from thespis.core.types import Array
from thespis.exchange.codecs import cut_sections
from thespis.exchange.compression import Compressor, refuse_rank
from thespis.exchange.heartbeats import send_heartbeats
from thespis.exchange.mean_gradients import read_combined
from thespis.exchange.protocol import LeftGroup, Replica
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer

_DIGEST_EVERY = 100
"""Updates between two comparisons of the learners' parameters."""
_MEMORY = "compression/"
"""Start of the names under which the state holds the error memory, which differs between learners."""


class AllReduce:
    """A learner's side of the gradient edge to its group, and the optimiser that applies what the group returns.

    Gradients are clipped after they are combined, by their global norm; compressed ones also before. Schedules follow
    the steps of all learners.
    """

    shared: ClassVar = True

    def __init__(
        self,
        ctx: Context,
        optimizer: ScheduledOptimizer,
        group: GroupEdges,
        compression: CompressionConfig = UNCOMPRESSED,
    ) -> None:
        """`compression`: of the gradients that are sent to the group."""
        self._ctx, self._optimizer, self._group = ctx, optimizer, group
        self._compressor = build_compressor(ctx, compression, optimizer.shapes)
        self._mean = torch.zeros(sum(map(math.prod, optimizer.shapes)))
        self._member = Member(ctx.identity.index, ctx.identity.incarnation)
        self._replica: Replica | None = None
        self._heartbeats: asyncio.Future[None] | None = None
        self._batch_steps = self._calls = 0
        self._newcomers = False
        self.leads = False

    async def begin(self, replica: Replica) -> None:
        """Enter the group, and load the state of another learner if this one's differs."""
        self._replica = replica
        if self._heartbeats is None:
            self._heartbeats = self._ctx.ahead(send_heartbeats(self._ctx, self._group.heartbeat, self._member))
        admission = await self._group.join(self._member, replica.updates, _digest_of(await replica.snapshot()))
        if admission.state is not None:
            replica.restore(*admission.state)
        self._calls, self.leads, self._newcomers = 0, False, admission.newcomers
        await self._offer_state()

    def begin_batch(self, steps: int) -> None:
        """Count the steps of this learner's batch with its first round."""
        self._optimizer.fix_rate()
        self._batch_steps, self._calls = steps, 0

    async def end_batch(self) -> None:
        """Send this learner's state to newcomers, if the group asked for it."""
        await self._offer_state()

    async def gather(self, statistics: Array) -> list[Array]:
        """Return the statistics of all learners, in a fixed order."""
        return (await self._combine(statistics=statistics)).statistics

    async def apply(self, gradients: list[Tensor] | None, rows: int = 1) -> bool:
        """Apply the mean gradients of all learners; return False if one of them has none, or if they are not finite."""
        if not await self._reduce(None if gradients is None else await self._optimizer.whole(gradients), rows):
            return False
        applied = await self._optimizer.apply_whole(_split(self._mean, self._optimizer.shapes))
        if applied and self._compressor is not None:
            self._compressor.commit()
        return applied

    def state(self) -> dict[str, Array]:
        """Return the optimiser state, the progress of the run and this learner's error memory."""
        arrays = self._optimizer.state()
        if self._compressor is not None:
            arrays |= {f"{_MEMORY}{name}": array for name, array in self._compressor.state().items()}
            arrays[f"{_MEMORY}learner"] = np.array(self._member.learner)
        return arrays

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned, perhaps in another learner. An error memory stays with its learner."""
        self._optimizer.restore({name: array for name, array in arrays.items() if not name.startswith(_MEMORY)})
        memory = {name.removeprefix(_MEMORY): array for name, array in arrays.items() if name.startswith(_MEMORY)}
        if self._compressor is not None and memory:
            if int(memory["learner"]) == self._member.learner:
                self._compressor.restore(memory)
            else:
                self._compressor.forget()

    async def _reduce(self, gradients: list[Tensor] | None, rows: int) -> bool:
        """Write the mean gradients of all learners to `_mean`; return False if one of them has none."""
        message = None if gradients is None else await self._encode(gradients)
        combined = (await self._combine(gradients=message, rows=rows)).gradients
        if combined is None or message is None:
            return False
        # A copy, because the optimiser clips in place and other learners read the same memory.
        read_combined(combined, message, into=self._mean.numpy())
        return True

    async def _encode(self, gradients: list[Tensor]) -> GradientMessage | None:
        """The gradients as one message; None if compressed ones are not finite, because no memory may hold them."""
        if self._compressor is not None and not math.isfinite(clip_gradients(gradients, self._optimizer.clip)):
            return None
        size = len(self._mean)
        flat = self._ctx.allocate(size) if self._compressor is None else np.empty(size, np.float32)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=torch.from_numpy(flat))
        if self._compressor is None:
            return flat
        async with self._ctx.work("compress", items=len(flat)):
            return self._compressor.encode(flat)

    async def _combine(
        self, *, gradients: GradientMessage | None = None, rows: int = 0, statistics: Array | None = None
    ) -> Combined:
        """Take part in one round. Raises `LeftGroup` if this learner is no longer a member."""
        assert self._replica is not None
        update, first = self._replica.updates, self._calls == 0
        part = Contribution(
            update=update,
            call=self._calls,
            gradients=gradients,
            rows=rows,
            statistics=statistics,
            steps=self._batch_steps if first else 0,
            fraction=self._optimizer.fraction,
            digest=self._digest() if first and update % _DIGEST_EVERY == 0 else None,
        )
        combined = await self._group.combine(self._member, part)
        if combined is None:
            raise LeftGroup
        self._calls += 1
        self._optimizer.steps += combined.steps
        self._optimizer.fraction = combined.fraction
        self.leads = combined.leads
        self._newcomers = self._newcomers or combined.newcomers
        self._ctx.record("group/learners", combined.learners)
        return combined

    async def _offer_state(self) -> None:
        if self._newcomers:
            assert self._replica is not None
            arrays, values = await self._replica.snapshot()
            self._newcomers = False
            await self._group.offer(self._member, ({name: array.copy() for name, array in arrays.items()}, values))

    def _digest(self) -> int:
        digest = 0
        for parameter in self._optimizer.parameters:
            digest = zlib.crc32(parameter.detach().contiguous().numpy().data, digest)
        return digest


def _digest_of(state: RoleState) -> int:
    """A digest of the state that equal learners share: everything but clocks and error memories."""
    arrays, _ = state
    digest = 0
    for name in sorted(arrays):
        if not name.endswith("/seconds") and f"/{_MEMORY}" not in name:
            digest = zlib.crc32(np.ascontiguousarray(arrays[name]).data, digest)
    return digest


def build_compressor(ctx: Context, cfg: CompressionConfig, shapes: Sequence[tuple[int, ...]]) -> Compressor | None:
    """The encoder of gradients of parameters of these shapes; None if they are sent as float32."""
    if not cfg.compresses:
        return None
    layout = [(str(index), list(shape)) for index, shape in enumerate(shapes)]
    sections = cut_sections(layout, slice(0, sum(map(math.prod, shapes))))
    refuse_rank(cfg, [sections])
    return Compressor(ctx, cfg, sections)


def _split(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Views of a vector with the given shapes."""
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
