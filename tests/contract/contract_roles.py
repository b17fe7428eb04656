"""Small roles that record what they sent and received, to test protocols under every runtime."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from thespis import roles
from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.service import Method, RoleDescription
from thespis.core.system.commit import stage
from thespis.core.types import GradientMeta, Version, VersionedWeights

_MORE = 4
"""Number of items after the marked last one, so that the last one never waits for a full batch."""
LARGE = 9000
"""Size of an array that is too large to be inline in a message."""


def crash(how: str, once: Path) -> None:
    """Crash the calling role at the first call. Kill only a process of its own."""
    if not once.exists():
        once.touch()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("injected crash")


def note(journal: Path, entry: Any) -> None:
    with journal.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def read(journal: Path) -> list[Any]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


class Producer:
    """Inserts items tagged [producer, incarnation, number, whether it is the last], and records accepted ones."""

    def __init__(self, ctx: Any, insert: Any, acked: Path, items: int, crash_at: tuple[int, str] | None = None) -> None:
        self._ctx, self._insert, self._acked, self._items = ctx, insert, acked, items
        self._crash_at = crash_at

    async def run(self) -> None:
        me = self._ctx.identity
        for number in range(self._items + _MORE):
            last = number == self._items - 1
            tag = np.array([me.index, me.incarnation, number, last])
            sent = self._ctx.ahead(self._insert({"tag": tag, "data": np.full(LARGE * (number % 2), number)}))
            if self._crash_at is not None and number == self._crash_at[0]:
                await self._ctx.sleep(0.05)  # the item is in transit: it may or may not be stored
                crash(self._crash_at[1], self._acked.with_suffix(".crashed"))
            await sent
            note(self._acked, tag.tolist())


class Consumer:
    """Samples items and records them. In this test a producer's last item counts as an environment step.

    `delay`: seconds to wait before the first sample, once `full` items were accepted.
    """

    def __init__(
        self, ctx: Any, sample: Any, journal: Path, batch: int, acked: Path, delay: float = 0.0, full: int = 0
    ) -> None:
        self._ctx, self._sample, self._journal, self._batch = ctx, sample, journal, batch
        self._acked, self._delay, self._full = acked, delay, full

    async def run(self) -> None:
        if self._delay:
            while len(read(self._acked)) < self._full:
                await self._ctx.sleep(0.05)
            await self._ctx.sleep(self._delay)
            note(self._journal.with_suffix(".before"), len(read(self._acked)))
        while True:
            for item in await self._sample(self._batch):
                _, _, number, last = item["tag"]
                assert item["data"].size == LARGE * (number % 2)
                assert (item["data"] == number).all(), "the payload is incomplete"
                note(self._journal, item["tag"].tolist())
                self._ctx.count("env_steps", int(last))
            self._ctx.count("updates")


class Forgetful(roles.Queue):
    """A queue whose process crashes at one of its inserts, before it stores the item."""

    crash_at = (0, "")
    once = Path()
    inserts = -1

    @classmethod
    def fragile(cls, ctx: Any, *, capacity: int, crash_at: tuple[int, str], once: Path) -> Forgetful:
        made = cls(ctx, capacity=capacity)
        made.crash_at, made.once = crash_at, once
        return made

    async def insert(self, item: Any) -> None:
        self.inserts += 1
        if self.inserts == self.crash_at[0]:
            crash(self.crash_at[1], self.once)
        await super().insert(item)


class Publisher:
    """Publishes versions 0, 1, 2, ... of its epoch, with weights that hold their version."""

    description: ClassVar = RoleDescription(publishes=True)

    def __init__(self, ctx: Any, publish: Any, updates: int, crash_at: tuple[int, str] | None, once: Path) -> None:
        self._ctx, self._publish, self._updates, self._crash_at, self._once = ctx, publish, updates, crash_at, once

    async def run(self) -> None:
        epoch = self._ctx.identity.epoch
        await self._ctx.sleep(0.2)  # the first pull has to wait
        for update in range(self._updates):
            if self._crash_at is not None and update == self._crash_at[0]:
                crash(self._crash_at[1], self._once)
            weights = {"w": np.full(LARGE, float(update)), "epoch": np.array([epoch])}
            await self._publish(VersionedWeights(Version(epoch, update), weights))
            self._ctx.count("updates")
            await self._ctx.sleep(0.005)


class Puller:
    """Pulls newer weights and records their versions. In this test the goal's arrival counts as an environment step."""

    def __init__(self, ctx: Any, pull: Any, journal: Path, goal: Version) -> None:
        self._ctx, self._pull, self._journal, self._goal = ctx, pull, journal, goal

    async def run(self) -> None:
        version: Version | None = None
        while version is None or version < self._goal:
            newer = await self._pull(version)
            if newer is not None:
                assert (newer.weights["w"] == newer.version.update).all(), "the payload is incomplete"
                assert newer.weights["epoch"].tolist() == [newer.version.epoch]
                version = newer.version
            note(self._journal, None if newer is None else list(newer.version))
            await self._ctx.sleep(0.002)
        note(self._journal, await self._pull(version))  # nothing is newer than the goal
        self._ctx.count("env_steps")


class FragileStore(roles.WeightStore):
    """Crashes at the first pull of a caller that already has the last version."""

    crash_at = (0, "")
    once = Path()

    @classmethod
    def fragile(cls, ctx: Any, *, crash_at: tuple[int, str], once: Path) -> FragileStore:
        made = cls(ctx)
        made.crash_at, made.once = crash_at, once
        return made

    async def pull(self, newer_than: Version | None) -> VersionedWeights | None:
        if newer_than is not None and newer_than.update == self.crash_at[0]:
            crash(self.crash_at[1], self.once)
        return await super().pull(newer_than)


class Newcomer(Puller):
    """Pulls up to the goal, then once more without weights."""

    async def run(self) -> None:
        await super().run()
        newest = await self._pull(None)
        note(self._journal, list(newest.version))
        self._ctx.count("env_steps")


class Mute:
    """A service that never answers its calls."""

    description: ClassVar = RoleDescription(methods={"ask": Method("inference", takes="request")})

    def __init__(self, ctx: Any, *, error: str = "") -> None:
        self._ctx, self._error = ctx, error

    async def ask(self, _: Any) -> None:
        if self._error:
            raise ValueError(self._error)
        await self._ctx.sleep(3600.0)


class Responder:
    def __init__(self, ctx: Any, ask: Any) -> None:
        self._ask = ask

    async def run(self) -> None:
        await self._ask(np.zeros(LARGE))


class Pusher:
    """Pushes ones into an entry of its own, and records each reply: [number, epoch, its gradients applied so far]."""

    def __init__(self, ctx: Any, join: Any, push: Any, journal: Path, pushes: int, workers: int) -> None:
        self._ctx, self._join, self._push, self._journal = ctx, join, push, journal
        self._pushes, self._workers = pushes, workers

    async def run(self) -> None:
        me = self._ctx.identity
        held, _ = await self._join(me.index, np.zeros(self._workers, np.float32), [("w", [self._workers])])
        gradient = np.zeros(self._workers, np.float32)
        gradient[me.index] = 1.0
        for number in range(1, self._pushes + 1):
            meta = GradientMeta(me.index, me.incarnation, number, held.version, steps=1, weight=1.0, clock=number)
            held = await self._push(gradient, meta)
            note(self._journal, [number, held.version.epoch, -int(held.values[me.index])])
            await self._ctx.sleep(0.01)
        self._ctx.count("env_steps")
        await self._ctx.sleep(3600.0)


class FragileServer(roles.ParameterServer):
    """Crashes after it applied and saved a gradient, before it answers."""

    crash_at = (0, "")
    once = Path()
    pushes = 0

    @classmethod
    def fragile(cls, ctx: Any, *, crash_at: tuple[int, str], once: Path) -> FragileServer:
        made = cls(ctx, optimizer=OptimizerConfig(kind="sgd", learning_rate=1.0), budget=Budget(1))
        made.crash_at, made.once = crash_at, once
        return made

    async def push(self, encoded: Any, meta: GradientMeta) -> Any:
        self.pushes += 1
        mine = self.pushes == self.crash_at[0]
        answer = await super().push(encoded, meta)
        if mine and not self.once.exists():
            await self._ctx.sleep(1.0)  # time for a checkpoint
            crash(self.crash_at[1], self.once)
        return answer


class HalfWriter:
    """Crashes in the middle of a write below `directory`."""

    def __init__(self, ctx: Any, directory: Path, how: str) -> None:
        self._directory, self._how = directory, how

    async def run(self) -> None:
        (stage(self._directory) / "half").write_bytes(b"?")
        crash(self._how, self._directory.parent / "crashed")
