"""The worker's side of the gradient edge, against real shards: slices, pushes, parameters, and equal results."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, UnusedReplica, YieldingEdge, play
from gymnasium import spaces

from thespis.algorithms.updates.vtrace import VTraceUpdate
from thespis.algorithms.vtrace import VTrace
from thespis.core.budget import Budget
from thespis.core.config import NetworkConfig, OptimizerConfig
from thespis.core.context import Context, Identity
from thespis.core.edges import ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, Unroll
from thespis.exchange.hogwild import Hogwild
from thespis.exchange.local import LocalExchange
from thespis.exchange.parameter_client import cut_slices
from thespis.exchange.precision import decode, encode
from thespis.exchange.push_pull import PullAll, PushPull
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.experience.writers import concatenate
from thespis.networks.init import init_network
from thespis.networks.policies import ActorCritic
from thespis.roles import Learner, ParameterServer, SharedParameters

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)


def network(normalize: bool = False) -> ActorCritic:
    cfg = NetworkConfig(hidden=(8,), normalize_observations=normalize)
    return init_network(lambda: ActorCritic(OBS, ACTIONS, cfg), seed=2)


def servers(shards: int, optimizer: OptimizerConfig, **settings: Any) -> list[ParameterServer]:
    contexts = [FakeContext(Identity("server", index, run_seed=0)) for index in range(shards)]
    return [ParameterServer(ctx, optimizer=optimizer, budget=Budget(10_000), **settings) for ctx in contexts]


def exchange(index: int, made: Any, shards: list[ParameterServer], **settings: Any) -> PushPull:
    ctx = FakeContext(Identity("worker", index, run_seed=0, incarnation=3))
    joins, pushes = (tuple(YieldingEdge(getattr(shard, name)) for shard in shards) for name in ("join", "push"))
    return PushPull(ctx, made, ServerEdges(joins, pushes), **{"clip": 0.0, **settings})


def flat(made: Any) -> Array:
    array: Array = torch.cat([p.detach().reshape(-1) for p in made.parameters()]).numpy().copy()
    return array


def random_unroll(seed: int, steps: int = 6, batch: int = 2) -> Unroll:
    rng = np.random.default_rng(seed)
    valid = rng.random((steps, batch)) < 0.8
    return Unroll(
        inputs=Inputs(
            rng.normal(size=(steps + 1, batch, 3)).astype(np.float32),
            np.zeros((steps + 1, batch), bool),
            rng.integers(0, 3, (steps + 1, batch)),
            rng.normal(size=(steps + 1, batch)).astype(np.float32),
        ),
        actions=rng.integers(0, 3, (steps, batch)),
        rewards=rng.normal(size=(steps, batch)).astype(np.float32),
        terminated=rng.random((steps, batch)) < 0.1,
        truncated=np.zeros((steps, batch), bool),
        valid=valid,
        behaviour_logp=np.zeros((steps, batch), np.float32),
        state=(),
        versions=np.zeros((steps, batch), np.int64),
        final_index=np.zeros((0, 2), np.int64),
        final_obs=np.zeros((0, 3), np.float32),
    )


class Stored:
    """A source of given unrolls."""

    async def next(self) -> Unroll:
        raise NotImplementedError

    async def close(self) -> None: ...


def learner(ctx: Context, made: Any, how: Any) -> Learner:
    return Learner(ctx, Stored(), VTraceUpdate(made, VTrace(correction=False)), how, None)


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "adam"])
def test_workers_in_lock_step_equal_one_with_all_their_environments(kind: str) -> None:
    """Compare four workers of two environments and three shards with one learner of eight environments."""
    optimizer = OptimizerConfig(kind=kind, learning_rate=0.01, clip=0.0)  # type: ignore[arg-type]

    async def scene() -> None:
        shards = servers(3, optimizer, mode="sync", quorum=4)
        nets = [network() for _ in range(4)]
        exchanges = [exchange(index, made, shards) for index, made in enumerate(nets)]
        workers = [learner(FakeContext(Identity("worker", 0, 0)), *pair) for pair in zip(nets, exchanges, strict=True)]
        single = network()
        alone = FakeContext(Identity("learner", 0, run_seed=0))
        one = learner(
            alone,
            single,
            LocalExchange(ScheduledOptimizer(alone, optimizer, list(single.parameters()), Budget(10_000))),
        )
        for each in exchanges:
            await each.begin(UnusedReplica())
        for update in range(5):
            unrolls = [random_unroll(10 * update + index) for index in range(4)]
            await asyncio.gather(*(worker.learn(part) for worker, part in zip(workers, unrolls, strict=True)))
            await one.learn(concatenate(unrolls))
            for made in nets:
                np.testing.assert_allclose(flat(made), flat(single), atol=1e-6)
        assert np.abs(flat(single) - flat(network())).max() > 1e-3, "nothing was learned"

    play(scene())


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_what_is_pulled_is_what_was_pushed_into(shards: int) -> None:
    async def scene() -> None:
        made, parts = network(), servers(shards, OptimizerConfig(kind="sgd", learning_rate=1.0))
        edge = exchange(0, made, parts)
        before = flat(made)
        await edge.begin(UnusedReplica())
        np.testing.assert_array_equal(flat(made), before)
        gradients = [torch.full_like(parameter, 0.5) for parameter in made.parameters()]
        edge.begin_batch(10)
        assert await edge.apply(gradients)
        np.testing.assert_array_equal(flat(made), before - 0.5)
        pull = PullAll(FakeContext(Identity("evaluator", 0, 0)), network(), [YieldingEdge(part.pull) for part in parts])
        pulled = await pull(None)
        assert pulled is not None
        for name, value in made.state_dict().items():
            np.testing.assert_array_equal(pulled.weights[name], value.numpy())
        assert await pull(pulled.version) is None
        edge.begin_batch(10)
        await edge.apply(gradients)
        newer = await pull(pulled.version)
        assert newer is not None and newer.version > pulled.version

    play(scene())


def test_the_whole_gradient_is_clipped_before_it_is_cut() -> None:
    async def scene() -> None:
        made, parts = network(), servers(3, OptimizerConfig(kind="sgd", learning_rate=1.0))
        edge = exchange(0, made, parts, clip=1.0)
        await edge.begin(UnusedReplica())
        before = flat(made)
        edge.begin_batch(1)
        await edge.apply([torch.full_like(parameter, 3.0) for parameter in made.parameters()])
        np.testing.assert_allclose(np.linalg.norm(flat(made) - before), 1.0, rtol=1e-5)

    play(scene())


def test_gradients_that_are_not_finite_are_not_sent_but_their_steps_are_counted() -> None:
    """The same if the loss is not finite, and in lock-step, where the servers wait for the next batch instead."""

    async def scene() -> None:
        made, parts = network(), servers(2, OptimizerConfig(kind="sgd", learning_rate=1.0), mode="sync")
        edge = exchange(0, made, parts)
        await edge.begin(UnusedReplica())
        bad = [torch.full_like(parameter, float("nan")) for parameter in made.parameters()]
        for gradients in (bad, None):
            edge.begin_batch(10)
            assert not await edge.apply(gradients)
        assert [part.version.update for part in parts] == [0, 0]
        edge.begin_batch(5)
        assert await edge.apply([torch.ones_like(parameter) for parameter in made.parameters()])
        assert [part.state()[1]["steps"] for part in parts] == [25, 25]

    play(scene())


def test_a_schedule_follows_the_steps_of_all_learners() -> None:
    """Two workers of a server, or two in shared memory, anneal like one learner with all their steps."""
    optimizer = OptimizerConfig(kind="sgd", learning_rate=1.0, anneal=True, clip=0.0)

    async def scene() -> None:
        parts = servers(1, optimizer)
        memory = SharedParameters(FakeContext(Identity("server", 0, run_seed=0)), optimizer=optimizer, workers=2)
        start = flat(network())
        for build in (
            lambda index, made: exchange(index, made, parts),
            lambda index, made: Hogwild(
                FakeContext(Identity("worker", index, 0)), made, optimizer, YieldingEdge(memory.join), Budget(10_000)
            ),
        ):
            nets = [network(), network()]
            edges: list[Any] = [build(index, made) for index, made in enumerate(nets)]
            for edge in edges:
                await edge.begin(UnusedReplica())
            for edge, bad in ((edges[0], True), (edges[1], False)):
                edge.begin_batch(2_500)
                await edge.apply(None if bad else [torch.ones_like(p) for p in nets[0].parameters()])
            edges[0].begin_batch(2_500)
            await edges[0].apply([torch.ones_like(p) for p in nets[0].parameters()])
            # Rates 0.75 (2,500 of 10,000 steps are known) and 0.25 (7,500).
            np.testing.assert_allclose(flat(nets[0]), start - 1.0, atol=1e-6)

    play(scene())


def test_a_shard_that_lost_everything_is_given_the_workers_copy() -> None:
    async def scene() -> None:
        optimizer = OptimizerConfig(kind="sgd", learning_rate=1.0)
        made, parts = network(), servers(2, optimizer)
        edge = exchange(0, made, parts)
        await edge.begin(UnusedReplica())
        gradients = [torch.ones_like(parameter) for parameter in made.parameters()]
        edge.begin_batch(1)
        await edge.apply(gradients)
        before = flat(made)
        edges: Any = edge._servers
        edges.joins[1].method = servers(2, optimizer)[1].join
        edges.pushes[1].method = edges.joins[1].method.__self__.push
        edge.begin_batch(1)
        await edge.apply(gradients)
        half = len(before) // 2
        np.testing.assert_array_equal(flat(made), np.concatenate([before[:half] - 1, before[half:]]))

    play(scene())


@pytest.mark.parametrize("kind", ["rmsprop", "adam"])
def test_one_hogwild_worker_does_what_a_server_does(kind: str) -> None:
    """A second worker on the same memory sees the update, and so does a restored role."""
    optimizer = OptimizerConfig(kind=kind, learning_rate=0.1, anneal=True, clip=1.0)  # type: ignore[arg-type]

    async def scene() -> None:
        memory = SharedParameters(FakeContext(Identity("server", 0, run_seed=0)), optimizer=optimizer, workers=2)
        pushed, shared = network(), network()
        edge = exchange(0, pushed, servers(1, optimizer), clip=1.0)
        wild = [
            Hogwild(
                FakeContext(Identity("worker", index, 0)), made, optimizer, YieldingEdge(memory.join), Budget(10_000)
            )
            for index, made in enumerate((shared, network()))
        ]
        for each in (edge, *wild):
            await each.begin(UnusedReplica())
        for seed in range(4):
            torch.manual_seed(seed)
            gradients = [torch.randn_like(parameter) for parameter in shared.parameters()]
            edge.begin_batch(500)
            await edge.apply([gradient.clone() for gradient in gradients])
            wild[0].begin_batch(500)
            await wild[0].apply(gradients)
        np.testing.assert_array_equal(flat(shared), flat(pushed))
        pulled = await memory.pull(None)
        assert pulled is not None and pulled.version.update == 4
        np.testing.assert_array_equal(pulled.values, flat(pushed))
        assert await memory.pull(pulled.version) is None
        wild[1].begin_batch(1)
        assert await wild[1].apply([torch.zeros_like(p) for p in shared.parameters()])
        assert wild[1]._ctx.take_report().stats["lag"].maximum == 4, (
            "computed from the parameters before the other four updates"
        )

        arrays, values = memory.state()
        again = SharedParameters(FakeContext(Identity("server", 0, 0, epoch=1)), optimizer=optimizer, workers=2)
        again.restore(arrays, values)
        restored = await again.pull(None)
        assert restored is not None and restored.version == (1, 5)
        np.testing.assert_array_equal(again.state()[0]["values"], arrays["values"])
        for each in (memory, again):
            await each.close()

    play(scene())


def test_slices_cover_everything_once() -> None:
    assert [(part.start, part.stop) for part in cut_slices(10, 3)] == [(0, 3), (3, 6), (6, 10)]
    with pytest.raises(ThespisError, match="fewer --shards"):
        cut_slices(2, 3)


def test_a_network_with_buffers_is_refused() -> None:
    with pytest.raises(ThespisError, match="without buffers"):
        exchange(0, network(normalize=True), servers(1, OptimizerConfig()))


def test_half_precision_on_the_wire() -> None:
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for kind, nbytes, error in (("float32", 4, 0.0), ("float16", 2, 2**-11), ("bfloat16", 2, 2**-8)):
        wire = encode(numbers, kind)
        assert wire.nbytes == nbytes * 1000
        np.testing.assert_allclose(decode(wire), numbers, rtol=error, atol=1e-7)
        assert decode(wire).dtype == np.float32
    np.testing.assert_array_equal(decode(encode(np.array([1e6, -1e6], np.float32), "float16")), [65504, -65504])
    # One half-way between two bfloat16 goes to the even one.
    np.testing.assert_array_equal(
        decode(encode(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32), "bfloat16")), [1, 1 + 2**-6]
    )
