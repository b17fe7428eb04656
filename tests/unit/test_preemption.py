"""Preemption: a slow learner uses the part of a batch that it has when enough others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fakes import FakeContext, FakeEdge, play, settle

from thespis.core.context import Identity
from thespis.core.payloads import Contribution, Member
from thespis.core.types import Version
from thespis.experience.sources import Preemption
from thespis.roles import LearnerGroup, Queue

Collect = Callable[[], asyncio.Task[list[Any]]]


class Scene:
    """Learners that collect batches of 3 items from queues of their own."""

    def __init__(self, learners: int, share: float) -> None:
        ctx = FakeContext(Identity("group", 0, run_seed=0))
        self.group = LearnerGroup(ctx, learners=learners, timeout=4.0, averages=True, preempt_share=share)
        self.contexts = [FakeContext(Identity("learner", index, 0, incarnation=1)) for index in range(learners)]
        self.queues = [Queue(each, capacity=10) for each in self.contexts]
        self.update = [0] * learners
        self.sources = [self._source(index) for index in range(learners)]

    def _source(self, index: int) -> Preemption:
        edges = FakeEdge(self.group.ready), FakeEdge(self.group.preempt)
        return Preemption(self.contexts[index], *edges, lambda: Version(0, self.update[index]))

    async def enter(self) -> None:
        await asyncio.gather(*(self.group.join(Member(index, 1), 0, 7) for index in range(len(self.queues))))

    def collect(self, index: int) -> asyncio.Task[list[Any]]:
        return asyncio.create_task(self.sources[index].collect(FakeEdge(self.queues[index].sample), 3))

    async def insert(self, index: int, *items: Any) -> None:
        for item in items:
            await self.queues[index].insert(item)
        await settle()

    def close(self) -> None:
        for source in self.sources:
            source.close()


def test_a_slow_learner_uses_what_it_has_when_enough_others_have_a_batch() -> None:
    async def scene() -> None:
        made = Scene(3, share=0.6)
        await made.enter()
        collected = [made.collect(index) for index in range(3)]
        await made.insert(2, "a")
        await made.insert(0, 1, 2, 3)
        assert collected[0].done() and not collected[2].done(), "one of three is not enough"
        await made.insert(1, 1, 2, 3)
        assert collected[2].result() == ["a"]
        assert made.contexts[2].counters()["group/preempted"] == 1
        assert "group/preempted" not in made.contexts[0].counters()
        made.close()

    play(scene())


def test_the_rest_of_a_divided_batch_belongs_to_the_next() -> None:
    async def scene() -> None:
        made = Scene(2, share=0.5)
        await made.enter()
        await made.insert(0, "a", "b")
        slow, fast = made.collect(0), made.collect(1)
        await made.insert(1, 1, 2, 3)
        assert (await slow, await fast) == (["a", "b"], [1, 2, 3])
        await made.insert(0, "c", "d", "e")
        made.update = [1, 1]
        assert await made.collect(0) == ["c", "d", "e"]
        made.close()

    play(scene())


def test_a_learner_without_any_item_waits_for_one() -> None:
    async def scene() -> None:
        made = Scene(2, share=0.5)
        await made.enter()
        slow, fast = made.collect(0), made.collect(1)
        await made.insert(1, 1, 2, 3)
        assert fast.done() and not slow.done()
        await made.insert(0, "a")
        assert slow.result() == ["a"]
        made.close()

    play(scene())


def test_items_that_do_not_count_are_replaced() -> None:
    async def scene() -> None:
        made = Scene(2, share=0.5)
        await made.enter()
        edge = FakeEdge(made.queues[0].sample)
        call = asyncio.create_task(
            made.sources[0].collect(edge, 3, lambda items: [item for item in items if item != "late"])
        )
        await made.insert(0, "a", "late", "b", "c")
        assert await call == ["a", "b", "c"]
        made.close()

    play(scene())


def test_a_batch_of_an_earlier_update_preempts_no_learner() -> None:
    async def scene() -> None:
        made = Scene(2, share=0.5)
        await made.enter()
        made.update = [1, 0]
        await made.insert(0, "a")
        slow, fast = made.collect(0), made.collect(1)
        await made.insert(1, 1, 2, 3)
        assert fast.done() and not slow.done()
        slow.cancel()
        made.close()

    play(scene())


def test_a_learner_that_left_is_not_waited_for_and_does_not_wait() -> None:
    async def scene() -> None:
        made = Scene(3, share=0.6)
        await made.enter()
        alive = asyncio.create_task(made.group.heartbeat(Member(1, 1)))
        await made.insert(1, "b")
        gone, slow = made.collect(1), made.collect(2)
        await made.insert(2, "a")
        await made.insert(0, 1, 2, 3)
        fast = made.collect(0)
        await settle()
        assert fast.done() and not slow.done()
        alive.cancel()
        await settle()
        assert gone.result() == ["b"], "it finds out that it left when it contributes"
        assert not slow.done(), "one of two is less than 0.6"
        combined = asyncio.create_task(made.group.combine(Member(2, 1), Contribution(0, 0)))
        await settle()
        combined.cancel()
        assert slow.done(), "it has contributed"
        made.close()

    play(scene())
