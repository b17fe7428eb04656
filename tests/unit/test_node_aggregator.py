"""Aggregators between learners and their group: what a round returns, and who takes part when one of them is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge, play, settle

from thespis.core.context import Identity
from thespis.core.edges import NodeEdges
from thespis.core.errors import ThespisError
from thespis.core.learners_config import CompressionConfig
from thespis.core.payloads import Combined, Contribution, Member
from thespis.core.program import Program
from thespis.exchange.compression import Compressor
from thespis.roles import LearnerGroup, NodeAggregator

TIMEOUT = 4.0
SECTIONS = np.array([[1, 2]], np.int32)


class Clock(FakeContext):
    """A context whose sleeps end when the test advances the time."""

    async def sleep(self, seconds: float) -> None:
        until = self.time + seconds
        while self.time < until:
            await asyncio.sleep(0)


class Nodes:
    """Four learners on two nodes, and their group."""

    def __init__(self, clip: float = 100.0, method: Any = "float32") -> None:
        self.ctx = Clock(Identity("group", 0, run_seed=0))
        self.group = LearnerGroup(self.ctx, learners=4, timeout=TIMEOUT, averages=True, per_node=2)
        self.calls = 0
        self.nodes = [self._node(index, clip, CompressionConfig(gradients=method)) for index in range(2)]

    def _node(self, index: int, clip: float, cfg: CompressionConfig) -> NodeAggregator:
        ctx, group = Clock(Identity("aggregator", index, run_seed=0)), self.group
        methods = group.heartbeat, group.join, group.offer, self._combine, group.leave
        compressor = Compressor(ctx, cfg, SECTIONS) if cfg.compresses else None
        edges = NodeEdges(*map(FakeEdge, methods))
        return NodeAggregator(ctx, edges, timeout=TIMEOUT, averages=True, clip=clip, compressor=compressor)

    async def _combine(self, given: Any) -> Combined | None:
        self.calls += 1
        return await self.group.combine_node(given)

    def node(self, learner: int) -> NodeAggregator:
        return self.nodes[learner // 2]

    async def enter(self) -> None:
        await asyncio.gather(*(self.node(index).join(member(index), 0, 7) for index in range(4)))

    async def round(self, parts: dict[int, Contribution]) -> dict[int, Combined | None]:
        calls = (self.node(index).combine(member(index), each) for index, each in parts.items())
        return dict(zip(parts, await asyncio.gather(*calls), strict=True))


def member(index: int) -> Member:
    return Member(index, 1)


def part(*values: float, update: int = 0, rows: int = 1, **rest: Any) -> Contribution:
    return Contribution(update, 0, np.array(values, np.float32), rows, **rest)


def test_a_round_is_the_mean_over_all_rows_in_one_message_of_each_node() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        given = {index: part(index, 10 * index, rows=1 + index, steps=2, fraction=index / 4) for index in range(4)}
        found = await made.round(given)
        weights = np.arange(1, 5) / 10
        for index, combined in found.items():
            assert combined is not None
            mean = [float(weights @ np.arange(4)), float(weights @ (10 * np.arange(4)))]
            np.testing.assert_allclose(combined.gradients, mean, rtol=1e-6)  # type: ignore[arg-type]
            assert (combined.learners, combined.steps, combined.fraction) == (4, 8, 0.75)
            assert combined.leads == (index == 0), "one learner leads"
        assert made.calls == 2

    play(scene())


def test_the_statistics_of_all_learners_arrive_in_one_order() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        given = {index: Contribution(0, 0, statistics=np.array([index])) for index in (3, 1, 0, 2)}
        for combined in (await made.round(given)).values():
            assert combined is not None and combined.gradients is None
            assert [int(each[0]) for each in combined.statistics] == [0, 1, 2, 3]

    play(scene())


@pytest.mark.parametrize("method", ["float32", "int8"])
def test_one_learner_without_gradients_vetoes_the_step_of_all(method: str) -> None:
    async def scene() -> None:
        made = Nodes(method=method)
        await made.enter()
        parts = {index: part(1, 2) for index in range(4)} | {3: Contribution(0, 0)}
        assert all(each is not None and each.gradients is None for each in (await made.round(parts)).values())
        assert made.ctx.counters()["group/vetoed_rounds"] == 1

    play(scene())


def test_gradients_are_clipped_before_they_are_compressed_and_a_memory_holds_no_nan() -> None:
    async def scene() -> None:
        made = Nodes(clip=1.0, method="int8")
        await made.enter()
        found = await made.round({index: part(30, 40) for index in range(4)})
        np.testing.assert_allclose(found[0].gradients, [0.6, 0.8], atol=0.01)  # type: ignore[union-attr,arg-type]
        broken = {index: part(1, 1, update=1) for index in range(4)} | {2: part(1, float("nan"), update=1)}
        assert all(each is not None and each.gradients is None for each in (await made.round(broken)).values())
        for node in made.nodes:
            assert all(np.isfinite(array).all() for array in node.state()[0].values())

    play(scene())


def test_the_others_go_on_when_a_learner_of_a_node_is_lost() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        beat = asyncio.create_task(made.node(1).heartbeat(member(1)))
        waiting = asyncio.create_task(made.round({index: part(index) for index in (0, 2, 3)}))
        await settle()
        assert not waiting.done()
        beat.cancel()  # as the runtime does when the learner's process ends
        found = await waiting
        np.testing.assert_allclose(found[0].gradients, [5 / 3], rtol=1e-6)  # type: ignore[union-attr,arg-type]
        assert found[0] is not None and found[0].learners == 3
        assert made.ctx.counters()["group/lost"] == 1
        assert await made.node(1).combine(member(1), part(1)) is None, "it must enter again"

    play(scene())


def test_a_silent_learner_of_a_node_is_let_go_once() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        running = [asyncio.create_task(each.run()) for each in (made.group, *made.nodes)]
        waiting = asyncio.create_task(made.round({index: part(index) for index in (0, 2, 3)}))
        for _ in range(12):
            for ctx in (made.ctx, *(node._ctx for node in made.nodes)):
                ctx.time += TIMEOUT / 4  # type: ignore[attr-defined]
            for index in (0, 2, 3):
                made.node(index)._note_alive(member(index))
                made.group._note_alive(member(index))
            await settle()
        found = await waiting
        assert found[0] is not None and found[0].learners == 3
        counted = made.ctx.counters()
        assert (counted["group/timeouts"], counted["group/lost"]) == (1, 1)
        for task in running:
            task.cancel()

    play(scene())


def test_contributions_to_different_updates_are_not_mixed() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        found = await made.round({0: part(1), 1: part(2, update=1), 2: part(3, update=1), 3: part(4, update=1)})
        assert found[0] is None, "it is behind, and must enter again"
        for index in (1, 2, 3):
            np.testing.assert_allclose(found[index].gradients, [3.0], rtol=1e-6)  # type: ignore[union-attr,arg-type]
        assert made.ctx.counters()["group/behind"] == 1

    play(scene())


def test_a_learner_that_enters_contributes_to_the_round_that_its_neighbour_waits_in() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        node, newcomer = made.node(1), Member(1, 2)
        joining = asyncio.create_task(node.join(newcomer, 0, 7))
        await settle()
        first = asyncio.create_task(made.round({0: part(1)}))
        await settle()
        assert not first.done(), "the other node has not contributed"
        await made.node(2).offer(member(2), ({}, {}))
        await joining
        late = asyncio.create_task(node.combine(newcomer, part(2)))
        await settle()
        others = await made.round({2: part(3), 3: part(4)})
        for combined in ((await first)[0], await late, others[2]):
            assert combined is not None and combined.learners == 4
            np.testing.assert_allclose(combined.gradients, [2.5], rtol=1e-6)  # type: ignore[arg-type]

    play(scene())


def test_the_learners_of_a_lost_aggregator_leave_the_group() -> None:
    async def scene() -> None:
        made = Nodes()
        await made.enter()
        beats = [asyncio.create_task(made.group.heartbeat(member(index))) for index in (2, 3)]
        waiting = asyncio.create_task(made.round({index: part(index) for index in (0, 1)}))
        await settle()
        for beat in beats:
            beat.cancel()  # the group's calls from the aggregator end with its process
        found = await waiting
        assert found[0] is not None and found[0].learners == 2
        assert made.ctx.counters()["group/lost"] == 2

    play(scene())


def test_an_aggregator_of_one_learner_is_refused() -> None:
    p = Program("test")
    group = p.at().add("group", LearnerGroup, learners=1, timeout=1.0, averages=True)
    edges: Any = group.edge(LearnerGroup.combine_node)
    node = p.at().add("aggregator", NodeAggregator, edges, timeout=1.0, averages=True)  # type: ignore[arg-type]
    p.at().add("learner", lambda ctx, combine: None, node.edge(NodeAggregator.combine))
    with pytest.raises(ThespisError, match="fewer than 2 learners call it"):
        p.check()
