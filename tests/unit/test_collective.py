"""A ring of learners: its sum, votes on whether the sum counts, and changes of its members."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, YieldingEdge, play

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Identity
from thespis.core.edges import GroupEdges
from thespis.core.errors import ThespisError
from thespis.core.payloads import Member, RoleState
from thespis.core.types import Array
from thespis.exchange.collective import CollectiveAllReduce, _Message, _Stage
from thespis.exchange.ring import Addresses, Ring
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.roles import LearnerGroup

SGD = OptimizerConfig(kind="sgd", learning_rate=1.0, anneal=False, clip=0.0)
HOST, SECONDS, SIZE = "127.0.0.1", 60.0, 4611  # no scene needs the timeout of a ring


class Learner:
    """A learner whose weights begin at zero. With SGD and rate 1 they are minus the sum of all applied gradients."""

    def __init__(self, index: int, group: LearnerGroup, averages: bool = True) -> None:
        self.ctx = FakeContext(Identity("learner", index, run_seed=0, incarnation=2**61 + index))
        self.weights, self.updates = torch.zeros(SIZE), 0
        optimizer = ScheduledOptimizer(self.ctx, SGD, [self.weights], Budget(1))
        edges = GroupEdges(*map(YieldingEdge, (group.heartbeat, group.join, group.offer, group.agree)))
        self.exchange = CollectiveAllReduce(self.ctx, optimizer, edges, averages, SECONDS)

    async def snapshot(self) -> RoleState:
        return {"weights": self.weights.numpy()}, {}

    def restore(self, arrays: dict[str, Array], values: dict[str, object]) -> None:
        raise NotImplementedError

    async def step(self, value: float | None, rows: int = 1) -> bool:
        """Apply a gradient whose numbers are `value`, in one update."""
        self.exchange.begin_batch(1)
        gradients = None if value is None else [torch.full((SIZE,), value)]
        applied = await self.exchange.apply(gradients, rows)
        self.updates += applied
        return applied

    @property
    def applied(self) -> float:
        """The sum of all gradients that it applied."""
        (value,) = set((-self.weights).tolist())
        return float(value)


class Broken:
    """A ring that fails `times` times once it has added up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, learner: Learner, times: int) -> None:
        self.left, add_up = times, Ring.add_up

        def failing(ring: Ring, vector: torch.Tensor) -> None:
            add_up(ring, vector)
            if ring is learner.exchange._ring and self.left:
                self.left -= 1
                raise RuntimeError("connection reset by peer")

        monkeypatch.setattr(Ring, "add_up", failing)


async def entered(number: int, averages: bool = True) -> tuple[list[Learner], LearnerGroup]:
    ctx = FakeContext(Identity("group", 0, run_seed=0))
    group = LearnerGroup(ctx, learners=number, timeout=3.0, averages=averages)
    learners = [Learner(index, group, averages) for index in range(number)]
    await asyncio.gather(*(learner.exchange.begin(learner) for learner in learners))
    return learners, group


def counted(learners: list[Learner], name: str) -> int:
    return sum(learner.ctx.counters().get(name, 0) for learner in learners)


# -- the ring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_all_members_of_a_ring_get_the_same_bits(number: int) -> None:
    members = [Member(index, index + 7) for index in range(number)]
    barrier, shared = threading.Barrier(number), Addresses()
    vectors = [torch.from_numpy(np.random.default_rng(index).normal(size=SIZE).astype(np.float32)) for index in members]
    expected = np.sum([vector.numpy() for vector in vectors], axis=0, dtype=np.float64)

    def swap(own: Addresses) -> Addresses:
        shared.update(own)
        barrier.wait(SECONDS)
        return shared

    def add_up(rank: int) -> int:
        ring = Ring(members, rank, HOST, SECONDS, swap)
        ring.add_up(vectors[rank])
        return ring.sent_bytes(vectors[rank])

    with ThreadPoolExecutor(number) as threads:
        sent = list(threads.map(add_up, range(number)))
    assert len({vector.numpy().tobytes() for vector in vectors}) == 1
    np.testing.assert_allclose(vectors[0].numpy(), expected, rtol=1e-5, atol=1e-5)
    assert sent == [2 * (number - 1) * 4 * SIZE // number] * number


def test_a_message_survives_its_encoding() -> None:
    for message in (
        _Message(Member(3, 2**62 - 1), _Stage.VOTE, rows=17, ring=2**32),
        _Message(Member(0, 1), _Stage.CONNECT, addresses={"0/0": bytes(range(256)), "0/1": b""}),
    ):
        assert _Message.decode(message.encode()) == message


# -- votes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("averages", "expected"), [(True, 2.5), (False, 4.0)])
def test_learners_apply_the_mean_over_all_rows_or_the_sum(averages: bool, expected: float) -> None:
    async def scene() -> None:
        learners, _ = await entered(2, averages)
        for _ in range(2):
            assert await asyncio.gather(learners[0].step(1, rows=10), learners[1].step(3, rows=30)) == [True, True]
        assert [learner.applied for learner in learners] == [2 * expected] * 2
        assert counted(learners, "group/ring_rebuilt") == 0

    play(scene())


def test_the_bytes_of_the_ring_are_counted_once() -> None:
    async def scene() -> None:
        learners, _ = await entered(2)
        await asyncio.gather(*(learner.step(1) for learner in learners))
        for learner in learners:
            traffic = learner.ctx.take_report().edges["learner.learner.all_reduce"]
            assert (traffic.calls, traffic.bytes, traffic.sent) == (1, 4 * SIZE, 4 * SIZE)

    play(scene())


def test_one_learner_without_gradients_makes_all_skip() -> None:
    async def scene() -> None:
        learners, _ = await entered(3)
        steps = (learner.step(value) for learner, value in zip(learners, (1, None, 1), strict=True))
        assert list(await asyncio.gather(*steps)) == [False] * 3
        assert [learner.applied for learner in learners] == [0.0] * 3
        assert counted(learners, "group/vetoed_rounds") == 1

    play(scene())


def test_a_sum_that_one_learner_lacks_is_applied_by_none_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        learners, _ = await entered(3)
        broken = Broken(monkeypatch, learners[1], times=2)
        assert await asyncio.gather(*(learner.step(6) for learner in learners)) == [True] * 3
        assert broken.left == 0
        assert [learner.applied for learner in learners] == [6.0] * 3, "once, although two learners had it three times"
        assert counted(learners, "group/ring_rebuilt") == 2

    play(scene())


def test_learners_that_cannot_connect_fail_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        learners, _ = await entered(2)
        Broken(monkeypatch, learners[1], times=3)
        errors: list[Any] = await asyncio.gather(*(learner.step(6) for learner in learners), return_exceptions=True)
        assert all(isinstance(error, ThespisError) for error in errors)
        assert "another learner failed" in str(errors[0]) and "connection reset by peer" in str(errors[1])
        assert [learner.applied for learner in learners] == [0.0] * 2

    play(scene())


def test_a_learner_that_fails_before_it_connects_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        learners, _ = await entered(3)
        learners[2].ctx.address = "192.0.2.1"  # not an address of this machine

        async def repair() -> None:
            while counted(learners, "group/ring_rebuilt") < 1:
                await asyncio.sleep(0.001)
            learners[2].ctx.address = None

        repaired = asyncio.create_task(repair())
        assert await asyncio.gather(*(learner.step(6) for learner in learners)) == [True] * 3
        await repaired
        assert [learner.applied for learner in learners] == [6.0] * 3

    play(scene())


# -- members ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["vote", "connect", "sum", "outcome"])
def test_the_others_go_on_without_a_learner_that_ends_in_a_step(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        learners, _ = await entered(5)
        await asyncio.gather(*(learner.step(1) for learner in learners))
        if moment == "connect":
            for learner in learners:
                learner.exchange._abandon()
        lost = asyncio.create_task(learners[0].step(100))
        leave = end_at(moment, lost, learners[0], monkeypatch)
        assert await asyncio.gather(*(learner.step(4) for learner in learners[1:])) == [True] * 4
        await leave
        assert [learner.applied for learner in learners] == [1.0, 5.0, 5.0, 5.0, 5.0]
        assert await asyncio.gather(*(learner.step(2) for learner in learners[1:])) == [True] * 4
        assert [learner.applied for learner in learners[1:]] == [7.0] * 4

    play(scene())


def end_at(
    moment: str, lost: asyncio.Task[bool], learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Future[None]:
    """End a learner when it reaches a moment of a step, as the end of its process does; returns when it has ended."""
    reached, send, loop = asyncio.Event(), learner.exchange._send, asyncio.get_running_loop()
    stages = {"vote": _Stage.VOTE, "connect": _Stage.CONNECT, "outcome": _Stage.DONE}

    async def watched(message: _Message) -> list[_Message]:
        if message.stage == stages.get(moment):
            reached.set()
            await loop.create_future()
        return await send(message)

    async def stuck() -> None:
        reached.set()
        await loop.create_future()

    monkeypatch.setattr(learner.exchange, "_send", watched)
    if moment == "sum":
        monkeypatch.setattr(learner.exchange, "_add_up_in_ring", stuck)

    async def leave() -> None:
        await reached.wait()
        await asyncio.sleep(0.05)  # the others are in the ring
        assert learner.exchange._heartbeats is not None
        learner.exchange._heartbeats.cancel()
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)

    return asyncio.ensure_future(leave())
