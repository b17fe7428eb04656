"""Rounds: each has one version, actors wait for the next one, and a batch may take several gradient steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext

from thespis import roles
from thespis.algorithms.updates.update import Gradients
from thespis.core.context import Identity
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.program import Program
from thespis.core.types import Array, Inputs, Unroll, Version, VersionedWeights
from thespis.exchange.protocol import LeftGroup, SingleLearner
from thespis.experience.sources import OnPolicyRounds
from thespis.roles.learner import Learner
from thespis.roles.weight_store import WeightStore


def context() -> FakeContext:
    return FakeContext(Identity("learner", 0, run_seed=0, epoch=2))


def unroll(version: Version, mark: float = 0.0) -> Unroll:
    """Make an unroll of two steps of one environment; `mark` is its reward."""
    no = np.zeros((2, 1), bool)
    return Unroll(
        inputs=Inputs(np.zeros((3, 1, 1), np.float32), np.zeros((3, 1), bool), np.zeros((3, 1)), np.zeros((3, 1))),
        actions=np.zeros((2, 1), np.int64),
        rewards=np.full((2, 1), mark, np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        behaviour_logp=np.zeros((2, 1), np.float32),
        state=(),
        versions=np.full((2, 1), version.packed()),
        final_index=np.empty((0, 2), np.int64),
        final_obs=np.empty((0, 1), np.float32),
    )


class Sample:
    """An edge to a queue that always has enough unrolls."""

    name = "learner.queue.sample"

    def __init__(self, *queued: Unroll) -> None:
        self._queued = list(queued)

    async def __call__(self, items: int) -> list[Unroll]:
        taken, self._queued = self._queued[:items], self._queued[items:]
        assert len(taken) == items, "the source sampled more than needed"
        return taken


def test_only_unrolls_of_the_present_version_make_a_round() -> None:
    """Late unrolls: of an actor that is too slow, and of an earlier incarnation of the learner."""
    now = Version(2, 7)
    late = [unroll(Version(2, 6), 10.0), unroll(Version(1, 7), 20.0), unroll(Version(1, 900), 30.0)]
    sample = Sample(late[0], unroll(now, 1.0), late[1], late[2], unroll(now, 2.0))
    ctx = context()
    batch = asyncio.run(OnPolicyRounds(ctx, sample, 2, lambda: now).next())
    assert batch.rewards[0].tolist() == [1.0, 2.0]
    assert ctx.take_report().counters == {"dropped/late_unrolls": 3}


def test_the_next_version_is_waited_for() -> None:
    async def scene() -> None:
        store = WeightStore(context())

        async def publish(update: int) -> None:
            await store.publish(VersionedWeights(Version(2, update), {"w": np.array([update])}))

        first = asyncio.create_task(store.next(None))
        await publish(0)
        assert (await first).version == (2, 0)
        waits = [asyncio.create_task(store.next(Version(2, 0))) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        await publish(0)  # the same version is not newer
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        await publish(1)
        assert [(await wait).version for wait in waits] == [(2, 1)] * 3
        assert (await store.next(Version(1, 50))).version == (2, 1), "an earlier incarnation is older"

    asyncio.run(scene())


class Once:
    """A source of one batch."""

    async def next(self) -> Unroll:
        return unroll(Version(2, 0))

    async def done(self, batch: Any, priorities: Array | None) -> None: ...

    async def close(self) -> None: ...


class Parts(SingleLearner):
    """Divides a batch into `number` parts; part `bad` has a non-finite loss."""

    def __init__(self, number: int, bad: int | None) -> None:
        self._number, self._bad = number, bad
        self.applied: list[int] = []
        self.observed = self.counted = self.asked_in_vain = 0

    def minibatches(self, batch: Unroll) -> Iterator[tuple[int, int]]:
        for part in range(self._number):
            assert len(self.applied) == part, "a part is requested after the previous step"
            yield 1, part

    def gradients(self, part: int, want_metrics: bool) -> Gradients:
        if part == self._bad:
            raise NonFiniteLoss("bad")
        return Gradients([torch.tensor(part)], {"train/loss": float(part)})

    def observe(self, batch: Unroll) -> None:
        self.observed += 1

    def weights(self) -> dict[str, Array]:
        return {}

    def begin_batch(self, steps: int) -> None:
        self.counted += steps

    async def end_batch(self) -> None:
        pass

    async def apply(self, gradients: list[torch.Tensor] | None, rows: int = 1) -> bool:
        if gradients is None:
            self.asked_in_vain += 1
            return False
        self.applied.append(int(gradients[0]))
        return True


@pytest.mark.parametrize(("bad", "made"), [(None, 3), (2, 2), (0, 0)])
def test_several_steps_are_one_update(bad: int | None, made: int) -> None:
    """After a non-finite part the rest is dropped. The version still advances, because actors wait for it."""
    ctx, parts = context(), Parts(3, bad)
    update: Any = parts
    publish: Any = None
    learner = Learner(ctx, Once(), update, update, publish)
    asyncio.run(learner.learn(unroll(Version(2, 0))))
    assert (parts.applied, parts.counted) == ([0, 1, 2][:made], 2), "environment steps are counted once"
    assert parts.asked_in_vain == (bad is not None), "the exchange is called without gradients, too"
    assert learner.version == (2, 1)
    counters = ctx.take_report().counters
    assert counters.get("dropped/non_finite_batches", 0) == (bad is not None)
    assert counters["learner/steps"] == 2 and parts.observed == (bad is None)


class Leaves(Parts):
    """The other learners made an update during part `left`."""

    def __init__(self, left: int) -> None:
        super().__init__(3, None)
        self._left = left

    async def apply(self, gradients: list[torch.Tensor] | None, rows: int = 1) -> bool:
        if len(self.applied) == self._left:
            raise LeftGroup
        return await super().apply(gradients, rows)


@pytest.mark.parametrize(("left", "updates"), [(0, 0), (2, 1)])
def test_a_part_of_an_update_makes_a_version_of_its_own(left: int, updates: int) -> None:
    """Otherwise its actors would wait for a newer version, although their unrolls are used up."""
    update: Any = Leaves(left)
    publish: Any = None
    learner = Learner(context(), Once(), update, update, publish)
    with pytest.raises(LeftGroup):
        asyncio.run(learner.learn(unroll(Version(2, 0))))
    assert learner.updates == updates


def test_a_barrier_that_too_few_could_pass_is_refused() -> None:
    p = Program("test")
    queue = p.at().add("queue", roles.Queue, capacity=4)
    p.at().add("learner", lambda ctx, sample: None, queue.edge("sample", items=3, of_one_version=True))
    for _ in range(2):
        p.at().add("actor", lambda ctx, insert: None, queue.edge("insert"))
    with pytest.raises(ThespisError, match="waits for 3 unrolls of one version but only 2 actors make one each"):
        p.check()
