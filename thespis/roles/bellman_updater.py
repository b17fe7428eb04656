"""BellmanUpdater: labels sampled transitions with their Bellman targets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from thespis.core.context import Context
from thespis.core.edges import InsertLabelled, Pull
from thespis.core.service import RoleDescription
from thespis.core.types import Labelled, Version

if TYPE_CHECKING:
    from thespis.algorithms.updates.qtopt import Labeller
    from thespis.roles.learner import Source


class BellmanUpdater:
    """Samples batches, labels them with the lagged networks it pulls, and inserts them for the trainers.

    It holds no state of its own: the number of updaters changes only the rate of labels, and a crash loses only the
    batch under way.
    """

    description: ClassVar = RoleDescription(lost="unlabelled_batches")

    def __init__(
        self,
        ctx: Context,
        source: Source,
        labeller: Labeller,
        pulls: tuple[Pull, Pull],
        insert: InsertLabelled,
        pull_every: int,
    ) -> None:
        """`pulls`: of the first and of the second lagged network. `pull_every`: batches between two pulls."""
        self._ctx, self._source, self._labeller, self._insert = ctx, source, labeller, insert
        self._pulls, self._pull_every = pulls, pull_every
        self._versions: list[Version | None] = [None, None]
        self._handed: asyncio.Future[None] | None = None

    @property
    def version(self) -> Version:
        """Version of the first lagged network; `Version(0, 0)` before the first pull."""
        return self._versions[0] or Version(0, 0)

    async def run(self) -> None:
        """Label batches until the run ends."""
        batches = 0
        await self._refresh()
        while True:
            batch: Any = await self._source.next()
            if batches % self._pull_every == 0:
                await self._refresh()
            async with self._ctx.work("label", items=len(batch.rewards)):
                labelled = self._labeller.label(batch, self.version.packed())
            batches += 1
            await self._hand(labelled)

    async def close(self) -> None:
        """Close the source and cancel the pending insert."""
        await self._source.close()
        if self._handed is not None:
            self._handed.cancel()

    async def _hand(self, labelled: Labelled) -> None:
        """Start the insert; wait only while the previous insert is still pending."""
        if self._handed is not None:
            await self._ctx.wait(self._insert.name, self._handed)
        self._handed = self._ctx.ahead(self._insert(labelled))

    async def _refresh(self) -> None:
        for index, (pull, load) in enumerate(zip(self._pulls, self._labeller.loads, strict=True)):
            newer = await pull(self._versions[index])
            if newer is not None:
                load(newer.weights)
                self._versions[index] = newer.version
