"""PushAggregator: adds up the gradients of the workers of one node, and pushes one to the parameter servers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from thespis.core.context import Context
from thespis.core.edges import ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.futures import new_future
from thespis.core.learners_config import UNCOMPRESSED, CompressionConfig
from thespis.core.payloads import GradientMessage, Member
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, GradientMeta, ParameterLayout, ParameterSlice, Version
from thespis.exchange.compression import decompress
from thespis.exchange.heartbeats import PendingHeartbeats
from thespis.exchange.mean_gradients import weighted_sum
from thespis.exchange.parameter_client import ParameterClient
from thespis.roles.learner_group import TICKS

_FORM_SECONDS = 10.0
"""How long the first worker of a new run waits for the others."""


@dataclass(slots=True, eq=False)
class _Part:
    """A gradient of the current round, and the reply that its worker waits for."""

    gradient: GradientMessage
    meta: GradientMeta
    reply: asyncio.Future[ParameterSlice | None] = field(default_factory=new_future)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker that takes part in rounds. `heard`: time of its last sign of life.

    `incarnation`: None between its `join` and its next call. `part`: its gradient of the current round.
    """

    heard: float
    incarnation: int | None = None
    part: _Part | None = None


class PushAggregator:
    """All parameter servers, as the workers of one node call them: one server of the whole vector.

    In each round every worker pushes a gradient. The weighted mean travels to the servers as one gradient, and all
    workers receive the parameters that come back. So the workers always hold equal parameters, and the mean has the
    version of each of its parts. A worker that joins during a round receives the parameters after it.

    A round ends without a worker whose process ended, or which is silent for `timeout` seconds. The next push of a
    worker that takes no part receives None, and the worker joins again. So nothing is applied twice, also when this
    role's process ends. The error memory of compressed gradients is its only state; a restart loses it.
    """

    description: ClassVar = RoleDescription(
        methods={
            "join": Method("weights", takes="initial weights", gives="weights"),
            "push": Method("gradients", takes="gradients", gives="weights"),
            "pull": Method("weights", gives="weights"),
            "heartbeat": Method("gradients", takes="signal"),
        },
        publishes=True,
        forgets=True,
    )

    def __init__(
        self,
        ctx: Context,
        servers: ServerEdges,
        *,
        workers: int,
        timeout: float,
        compression: CompressionConfig = UNCOMPRESSED,
    ) -> None:
        """`workers`: how many a new run waits for. `compression`: of the gradients for the servers."""
        self._ctx, self._servers, self._timeout, self._compression = ctx, servers, timeout, compression
        self._count, self._heartbeats = workers, PendingHeartbeats(timeout / TICKS)
        # After a restart the workers are already running, so the wait is short.
        self._form_seconds = timeout / TICKS if ctx.identity.restarts else _FORM_SECONDS
        self._form_until = math.inf
        self._workers: dict[int, _Worker] = {}
        self._client: ParameterClient | None = None
        self._values: Array = np.empty(0, np.float32)
        self._served: ParameterSlice | None = None
        self._saved: dict[str, Array] = {}
        self._begun, self._changed = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()  # held while the parameters change

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Refuse an aggregator that adds nothing up, or waits for workers that do not exist."""
        workers = sum(edge.method == "push" for edge in incoming)
        if workers < 2:
            raise ThespisError(f"{name}: fewer than 2 workers push to it, so it would add nothing up")
        if workers != settings["workers"]:
            raise ThespisError(f"{name}: it waits for {settings['workers']} workers, but {workers} push to it")

    async def run(self) -> None:
        """Push the mean of each round to the servers."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            async with self._turn:
                if self._complete():
                    await self._push()

    # -- edges ------------------------------------------------------------------------------------

    async def heartbeat(self, member: Member) -> None:
        """Note that a worker is alive; return when its next heartbeat has arrived."""
        self._find(*member)
        try:
            await self._heartbeats.keep(member)
        except asyncio.CancelledError:
            self._lose(*member)
            raise
        self._drop_silent()

    async def join(self, worker: int, values: Array, layout: ParameterLayout) -> tuple[ParameterSlice, int]:
        """Let a worker take part, and return the current parameters. The servers' are initialised by the first worker.

        Also returns the worker's initial push count, which has no meaning here.
        """
        self._remove(worker)
        async with self._turn:
            if self._client is None:
                await self._open(values, layout)
            self._workers[worker] = _Worker(self._ctx.now())
        assert self._served is not None
        self._check()
        return self._served, 0

    async def push(self, gradient: GradientMessage, meta: GradientMeta) -> ParameterSlice | None:
        """Add a gradient to the current round, and return the parameters after it. None: the worker must join."""
        worker = self._find(meta.worker, meta.incarnation)
        if worker is None:
            self._ctx.count("dropped/stray_gradients")
            return None
        part = worker.part = _Part(gradient, meta)
        self._check()
        try:
            return await part.reply
        except asyncio.CancelledError:
            self._lose(meta.worker, meta.incarnation)
            raise

    async def pull(self, newer_than: Version | None) -> ParameterSlice | None:
        """The parameters of the node, or None if the caller has this version. Waits only before the first join."""
        if newer_than is None:
            await self._begun.wait()
        served = self._served
        return served if served is not None and (newer_than is None or served.version > newer_than) else None

    # -- workers ----------------------------------------------------------------------------------

    def _find(self, index: int, incarnation: int) -> _Worker | None:
        """The worker that calls, if it takes part; notes that it is alive."""
        worker = self._workers.get(index)
        if worker is None or worker.incarnation not in (None, incarnation):
            return None
        worker.incarnation, worker.heard = incarnation, self._ctx.now()
        return worker

    def _lose(self, index: int, incarnation: int) -> None:
        """Go on without an incarnation of a worker whose process ended."""
        worker = self._workers.get(index)
        if worker is not None and worker.incarnation == incarnation:
            self._give_up(index)

    def _give_up(self, index: int) -> None:
        self._ctx.count("group/lost")
        self._remove(index)

    def _remove(self, index: int) -> None:
        """Go on without a worker, and without its gradient of the current round."""
        worker = self._workers.pop(index, None)
        if worker is not None and worker.part is not None:
            self._ctx.count("dropped/stray_gradients")
            if not worker.part.reply.done():
                worker.part.reply.set_result(None)
        self._check()

    def _missing(self) -> list[int]:
        """The workers for which the round waits."""
        return sorted(index for index, worker in self._workers.items() if worker.part is None)

    def _drop_silent(self) -> None:
        """Go on without silent workers, if others wait for them."""
        missing, deadline = self._missing(), self._ctx.now() - self._timeout
        if len(missing) < len(self._workers):
            for index in missing:
                if self._workers[index].heard < deadline:
                    self._ctx.count("group/timeouts")
                    self._give_up(index)
        self._check()

    # -- rounds -----------------------------------------------------------------------------------

    def _complete(self) -> bool:
        """Whether all workers have pushed. A new run waits for the first push of workers that are still starting."""
        if len(self._workers) == self._count:
            self._form_until = -math.inf
        return bool(self._workers) and not self._missing() and self._ctx.now() >= self._form_until

    def _check(self) -> None:
        """Let `run` push if the round is complete; otherwise note what it waits for."""
        missing = self._missing()
        if self._complete():
            self._changed.set()
        elif missing and len(missing) < len(self._workers):
            self._ctx.waiting = f"a gradient of worker {', '.join(map(str, missing))}"

    async def _open(self, values: Array, layout: ParameterLayout) -> None:
        """Join the servers."""
        self._values = np.array(values, np.float32)
        client = ParameterClient(self._ctx, self._values, layout, self._servers, self._compression)
        client.restore(self._saved)
        await client.join()
        self._client, self._saved = client, {}
        self._form_until = self._ctx.now() + self._form_seconds
        self._serve(client.version)
        self._begun.set()

    async def _push(self) -> None:
        """Push the weighted mean of all parts and give the new parameters to their workers."""
        assert self._client is not None
        parts = [each.part for _, each in sorted(self._workers.items()) if each.part is not None]
        for worker in self._workers.values():
            worker.part = None
        self._ctx.waiting = None
        weight = sum(part.meta.weight for part in parts)
        async with self._ctx.work("combine", items=len(self._values)):
            mean = weighted_sum(
                [decompress(part.gradient) for part in parts],
                [part.meta.weight / (weight or 1.0) for part in parts],
                into=self._ctx.allocate(len(self._values)),
            )
        await self._client.push(mean, sum(part.meta.steps for part in parts), weight)
        self._serve(self._client.version)
        for part in parts:
            if not part.reply.done():
                part.reply.set_result(self._served)

    def _serve(self, version: Version) -> None:
        """Serve a copy of the parameters, which all roles of the node read in this process's memory."""
        values = self._ctx.allocate(len(self._values))
        np.copyto(values, self._values)
        self._served = ParameterSlice(version, values)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The error memories of the node's gradients, if they are compressed."""
        return self._saved if self._client is None else self._client.state(), {}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned, when the first worker joins."""
        self._saved = arrays
