"""Aggregators between workers and parameter servers: what an update is, and who takes part when a worker is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, FakeEdge, UnusedReplica, YieldingEdge, play, settle
from pushes import SGD, gradient_meta, values

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Identity
from thespis.core.edges import ServerEdges
from thespis.core.learners_config import CompressionConfig
from thespis.core.payloads import CompressedGradient, Member
from thespis.core.types import Array, GradientMeta, ParameterSlice
from thespis.exchange.heartbeats import PendingHeartbeats
from thespis.exchange.push_pull import PushPull
from thespis.roles import ParameterServer, PushAggregator

TIMEOUT = 4.0
LAYOUT = [("w", [2, 2])]
BUDGET = Budget(10_000)


class Nodes:
    """Workers on nodes, and their servers. `pushed`: the metadata of every push to server 0."""

    def __init__(
        self, nodes: int = 1, per_node: int = 2, shards: int = 1, optimizer: OptimizerConfig = SGD, **rule: Any
    ) -> None:
        self.servers = [
            ParameterServer(FakeContext(Identity("server", index, 0)), optimizer=optimizer, budget=BUDGET, **rule)
            for index in range(shards)
        ]
        self.pushed: list[GradientMeta] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.per_node = per_node
        self.compression = CompressionConfig()
        self.incarnation = 4
        self.nodes = [self.build(index) for index in range(nodes)]
        self.tasks = [asyncio.ensure_future(node.run()) for node in self.nodes]

    def build(self, index: int, **identity: Any) -> PushAggregator:
        joins = tuple(YieldingEdge(server.join) for server in self.servers)
        pushes = (YieldingEdge(self._push), *(YieldingEdge(server.push) for server in self.servers[1:]))
        self.incarnation += 1
        ctx = FakeContext(Identity("aggregator", index, 0, incarnation=self.incarnation, **identity))
        edges, compression = ServerEdges(joins, pushes), self.compression
        return PushAggregator(ctx, edges, workers=self.per_node, timeout=TIMEOUT, compression=compression)

    async def _push(self, gradient: Any, meta: GradientMeta) -> ParameterSlice | None:
        self.pushed.append(meta)
        await self.gate.wait()
        return await self.servers[0].push(gradient, meta)

    def restart(self, **identity: Any) -> PushAggregator:
        """Replace the first aggregator, as after the end of its process."""
        self.tasks[0].cancel()
        self.nodes[0] = self.build(0, **identity)
        self.tasks[0] = asyncio.ensure_future(self.nodes[0].run())
        return self.nodes[0]

    def parameters(self) -> Array:
        return np.concatenate([server._slice().values for server in self.servers])


async def enter(node: PushAggregator, *workers: int) -> None:
    for worker in workers:
        await node.join(worker, values(0, 0, 0, 0), LAYOUT)


async def one_node() -> tuple[Nodes, PushAggregator]:
    """Two workers, 0 and 1, that have joined."""
    made = Nodes()
    await enter(made.nodes[0], 0, 1)
    return made, made.nodes[0]


def push(node: PushAggregator, worker: int, *numbers: float, **rest: Any) -> asyncio.Future[ParameterSlice | None]:
    numbers = numbers or (1, 1, 1, 1)
    return asyncio.ensure_future(node.push(values(*numbers), gradient_meta(worker, **rest)))


def counters(node: PushAggregator) -> dict[str, int]:
    return node._ctx.counters()  # type: ignore[attr-defined,no-any-return]


# -- updates ----------------------------------------------------------------------------------------


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_two_levels_make_the_updates_of_one(kind: str) -> None:
    """Six workers with batches of different sizes, on three nodes and without; two shards; clipped before."""
    optimizer = OptimizerConfig(kind=kind, learning_rate=0.01)  # type: ignore[arg-type]

    async def run(per_node: int) -> Array:
        callers = 6 // per_node
        made = Nodes(callers, per_node, 2, optimizer, mode="sync", quorum=callers)
        workers = []
        for index in range(6):
            ctx, servers = FakeContext(Identity("worker", index, 0, incarnation=7)), made.servers
            joins, pushes = (tuple(YieldingEdge(getattr(each, name)) for each in servers) for name in ("join", "push"))
            edges = ServerEdges(joins, pushes)
            if per_node > 1:
                node = made.nodes[index // per_node]
                edges = ServerEdges(
                    *((YieldingEdge(each),) for each in (node.join, node.push)), FakeEdge(node.heartbeat)
                )
            workers.append(PushPull(ctx, network(), edges, clip=1.0))
        await asyncio.gather(*(worker.begin(UnusedReplica()) for worker in workers))
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            calls = []
            for index, worker in enumerate(workers):
                worker.begin_batch(10 * (index + 1))
                gradients = [torch.randn(each.shape, generator=generator) for each in network().parameters()]
                calls.append(worker.apply(gradients))
            assert all(await asyncio.gather(*calls))
        copies = [worker._client._values for worker in workers]
        for copy in copies:
            np.testing.assert_array_equal(copy, made.parameters())
        assert {worker.version.update for worker in workers} == {10}
        assert made.servers[0].state()[1]["steps"] == 5 * 210
        if per_node > 1:
            assert len(made.pushed) == 5 * callers
        return copies[0].copy()

    async def scene() -> None:
        np.testing.assert_allclose(await run(2), await run(1), rtol=1e-5, atol=1e-6)

    play(scene())


def test_a_message_carries_the_sum_of_steps_and_weights_and_the_version_of_its_parts() -> None:
    async def scene() -> None:
        made, node = await one_node()
        for update in range(2):
            first = push(node, 0, 0, 1, 2, 3, weight=1.0, steps=4, at=update, number=update)
            second = push(node, 1, 4, 5, 6, 7, weight=3.0, steps=12, at=update, number=update)
            assert await first is await second, "one copy for all"
        meta = made.pushed[1]
        assert (meta.worker, meta.incarnation, meta.number, meta.clock) == (0, 5, 2, 2)
        assert (meta.computed_at.update, meta.steps, meta.weight) == (1, 16, 4.0)
        np.testing.assert_allclose(made.parameters(), [-6, -8, -10, -12])

    play(scene())


@pytest.mark.parametrize("mode", ["async", "softsync", "stale"])
def test_nodes_do_not_wait_for_each_other_without_lock_step(mode: str) -> None:
    async def scene() -> None:
        made = Nodes(2, mode=mode, quorum=2 if mode == "softsync" else 1, max_staleness=1)
        for index, node in enumerate(made.nodes):
            await enter(node, 2 * index, 2 * index + 1)
        for number in range(3):
            replies = [push(made.nodes[0], worker, number=number) for worker in (0, 1)]
            assert all(await asyncio.gather(*replies))
        late = [push(made.nodes[1], worker) for worker in (2, 3)]
        assert all(await asyncio.gather(*late)), "a stale gradient is refused, and its workers receive parameters"
        counted = made.servers[0]._ctx.counters()  # type: ignore[attr-defined]
        assert counted.get("dropped/stale_gradients", 0) == (1 if mode == "stale" else 0)

    play(scene())


def test_a_role_that_acts_pulls_the_parameters_of_its_node() -> None:
    async def scene() -> None:
        made = Nodes()
        node = made.nodes[0]
        waiting = asyncio.ensure_future(node.pull(None))
        await settle()
        assert not waiting.done(), "no worker has joined"
        await enter(node, 0, 1)
        first = await waiting
        assert first is not None and await node.pull(first.version) is None
        made.gate.clear()
        pushes = [push(node, worker) for worker in (0, 1)]
        await settle()
        assert await node.pull(first.version) is None, "the reply is under way"
        made.gate.set()
        await asyncio.gather(*pushes)
        newer = await node.pull(first.version)
        assert newer is not None and newer.version.update == 1
        np.testing.assert_array_equal(newer.values, made.parameters())

    play(scene())


# -- compression ------------------------------------------------------------------------------------


def test_the_aggregator_compresses_and_keeps_the_memory() -> None:
    async def scene() -> None:
        made = Nodes()
        made.compression = CompressionConfig(gradients="topk", gradients_share=0.25)
        node, sent = made.restart(), []
        original = made.servers[0].push

        async def recorded(gradient: Any, meta: GradientMeta) -> ParameterSlice | None:
            sent.append(gradient)
            return await original(gradient, meta)

        made.servers[0].push = recorded  # type: ignore[method-assign]
        await enter(node, 0, 1)
        await asyncio.gather(push(node, 0, 8, 4, 2, 0), push(node, 1, 8, 0, 2, 0))
        assert isinstance(sent[0], CompressedGradient)
        np.testing.assert_allclose(made.parameters(), [-8, 0, 0, 0])
        memory = node.state()[0]
        np.testing.assert_allclose(memory["compression/0/memory"], [0, 2, 2, 0])
        resumed = made.restart()
        resumed.restore(*node.state())
        np.testing.assert_array_equal(resumed.state()[0]["compression/0/memory"], memory["compression/0/memory"])
        await enter(resumed, 0, 1)
        for name, array in resumed.state()[0].items():
            np.testing.assert_array_equal(array, memory[name])
        lost = made.restart(restarts=1)
        await enter(lost, 0, 1)
        assert lost.state()[0] == {} and counters(lost)["gradients/lost_memories"] == 1

    play(scene())


# -- workers that are gone --------------------------------------------------------------------------


def test_a_round_ends_without_a_worker_whose_process_ended() -> None:
    """The runtime cancels its heartbeat."""

    async def scene() -> None:
        made, node = await one_node()
        beat = asyncio.ensure_future(node.heartbeat(Member(1, 7)))
        waiting = push(node, 0, 3, 3, 3, 3)
        await settle()
        assert not waiting.done() and node._ctx.waiting == "a gradient of worker 1"
        beat.cancel()
        assert await waiting is not None
        np.testing.assert_allclose(made.parameters(), -3, err_msg="the mean of one gradient")
        assert counters(node) == {"group/lost": 1}
        assert await push(node, 1) is None, "it must join"

    play(scene())


def test_the_gradient_of_a_worker_that_dies_while_it_waits_is_not_used() -> None:
    async def scene() -> None:
        made = Nodes(per_node=3)
        node = made.nodes[0]
        await enter(node, 0, 1, 2)
        lost = push(node, 1, 9, 9, 9, 9)
        await settle()
        lost.cancel()
        await settle()
        await enter(node, 1)  # its next incarnation
        replies = [push(node, worker, incarnation=8 if worker == 1 else 7) for worker in (0, 1, 2)]
        assert all(await asyncio.gather(*replies))
        np.testing.assert_allclose(made.parameters(), -1)
        assert counters(node) == {"group/lost": 1, "dropped/stray_gradients": 1}

    play(scene())


def test_the_end_of_an_earlier_incarnation_does_not_remove_the_next() -> None:
    async def scene() -> None:
        _, node = await one_node()
        old = asyncio.ensure_future(node.heartbeat(Member(1, 7)))
        await settle()
        await enter(node, 1)
        old.cancel()
        await settle()
        waiting = push(node, 0)
        await settle()
        assert not waiting.done(), "the node still waits for worker 1"
        assert await push(node, 1, incarnation=8) is not None and await waiting is not None

    play(scene())


async def beat(node: PushAggregator) -> None:
    """Two heartbeats of worker 0; the second stays pending."""
    node._heartbeats = PendingHeartbeats(0.0)
    first, _ = (asyncio.ensure_future(node.heartbeat(Member(0, 7))) for _ in range(2))
    await first


def test_a_round_ends_without_a_silent_worker() -> None:
    async def scene() -> None:
        node = Nodes().nodes[0]
        await enter(node, 0, 1)
        waiting = push(node, 0)
        await beat(node)
        assert not waiting.done()
        node._ctx.time = 10.0  # type: ignore[attr-defined]
        await beat(node)
        assert await waiting is not None
        assert counters(node) == {"group/timeouts": 1, "group/lost": 1}
        assert await push(node, 1) is None, "it must join"
        assert counters(node)["dropped/stray_gradients"] == 1

    play(scene())


def test_nobody_is_silent_while_all_wait_for_the_servers() -> None:
    async def scene() -> None:
        made = Nodes()
        node = made.nodes[0]
        await enter(node, 0, 1)
        made.gate.clear()
        replies = [push(node, worker) for worker in (0, 1)]
        await settle()
        node._ctx.time = 10.0  # type: ignore[attr-defined]
        await beat(node)
        made.gate.set()
        assert all(await asyncio.gather(*replies)) and counters(node) == {}

    play(scene())


def test_a_worker_that_joins_during_a_round_receives_the_parameters_after_it() -> None:
    async def scene() -> None:
        made, node = await one_node()
        made.gate.clear()
        replies = [push(node, worker) for worker in (0, 1)]
        await settle()
        joining = asyncio.ensure_future(node.join(1, values(5, 5, 5, 5), LAYOUT))
        await settle()
        assert not joining.done()
        made.gate.set()
        assert await replies[0] is not None
        given, _ = await joining
        assert given.version.update == 1
        np.testing.assert_array_equal(given.values, made.parameters())
        waiting = push(node, 0, at=1)
        await settle()
        assert not waiting.done(), "the newcomer takes part"
        assert await push(node, 1, at=1, incarnation=8) is not None and await waiting is not None

    play(scene())


def test_the_first_round_of_a_run_waits_for_workers_that_are_starting_but_not_forever() -> None:
    async def scene() -> None:
        made = Nodes(per_node=3)
        node = made.nodes[0]
        await enter(node, 0, 1)
        replies = [push(node, worker) for worker in (0, 1)]
        await settle()
        assert not made.pushed
        node._ctx.time = 11.0  # type: ignore[attr-defined]
        await beat(node)
        assert all(await asyncio.gather(*replies))

    play(scene())


def test_a_restarted_aggregator_applies_nothing_twice() -> None:
    """It ends after the servers applied a gradient; the workers repeat their calls, and join."""

    async def scene() -> None:
        made = Nodes()
        await enter(made.nodes[0], 0, 1)
        for worker in (0, 1):
            push(made.nodes[0], worker)
        await settle()
        np.testing.assert_allclose(made.parameters(), -1)
        node = made.restart(restarts=1)
        assert [await push(node, worker) for worker in (0, 1)] == [None, None]
        assert await node.pull(made.servers[0].version) is None, "it has no parameters yet"
        for worker in (0, 1):
            given, _ = await node.join(worker, values(7, 7, 7, 7), LAYOUT)
            np.testing.assert_allclose(given.values, -1, err_msg="the servers' parameters, not the workers'")
        assert all(await asyncio.gather(*(push(node, worker, at=1, number=2) for worker in (0, 1))))
        np.testing.assert_allclose(made.parameters(), -2)
        assert counters(node) == {"dropped/stray_gradients": 2}

    play(scene())


def test_a_shard_that_lost_everything_receives_the_copy_of_the_node() -> None:
    async def scene() -> None:
        made, node = await one_node()
        await asyncio.gather(push(node, 0), push(node, 1))
        edges: Any = node._servers
        made.servers[0] = ParameterServer(FakeContext(Identity("server", 0, 0, epoch=1)), optimizer=SGD, budget=BUDGET)
        edges.joins[0].method = made.servers[0].join
        replies = await asyncio.gather(push(node, 0, at=1), push(node, 1, at=1))
        assert all(each is not None and each.version.epoch == 1 for each in replies)
        np.testing.assert_allclose(made.parameters(), -1)

    play(scene())
