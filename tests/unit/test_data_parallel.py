"""Several learners against one with all their data: equal weights, for every algorithm that can be divided."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, YieldingEdge, play
from gymnasium import spaces

from thespis.algorithms.base import Algorithm
from thespis.algorithms.dpg import DPG
from thespis.algorithms.dqn import DQN
from thespis.algorithms.ppo import PPO
from thespis.algorithms.r2d2 import R2D2
from thespis.algorithms.sac import SAC
from thespis.algorithms.vtrace import VTrace
from thespis.core.budget import Budget
from thespis.core.config import (
    NetworkConfig,
    OptimizerConfig,
    QNetworkConfig,
    ReplayConfig,
    RewardConfig,
    Rounds,
    Sequences,
    Transitions,
)
from thespis.core.context import Identity
from thespis.core.edges import GroupEdges, NodeEdges
from thespis.core.types import Array, Inputs, ReplaySample, SequenceBatch, TransitionBatch, Unroll
from thespis.envs.spaces import Spaces
from thespis.exchange.all_reduce import AllReduce
from thespis.exchange.collective import CollectiveAllReduce
from thespis.exchange.local import LocalExchange
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.experience.concat import concat_batches
from thespis.experience.writers import concatenate
from thespis.networks.configs import DPGNetworkConfig
from thespis.roles import Learner, LearnerGroup, NodeAggregator
from thespis.runs.checkpoints import weights_sha256

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("one_torch_thread")]
BOX, CHOICE, FORCE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
STEPS, COLUMNS, ROWS, BURN, LEARNED, LSTM = 4, 6, 8, 2, 4, 5
BUDGET = Budget(100_000)
PRIORITISED = ReplayConfig(priority_exponent=0.6)


# -- data -------------------------------------------------------------------------------------------


def unroll(rng: np.random.Generator, returns: bool, columns: int = COLUMNS) -> Unroll:
    def numbers(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    first = np.zeros((STEPS + 1, columns), bool)
    return Unroll(
        inputs=Inputs(numbers(STEPS + 1, columns, 3), first, rng.integers(0, 4, first.shape), numbers(*first.shape)),
        actions=rng.integers(0, 4, (STEPS, columns)),
        rewards=numbers(STEPS, columns),
        terminated=rng.random((STEPS, columns)) < 0.1,
        truncated=np.zeros((STEPS, columns), bool),
        valid=np.ones((STEPS, columns), bool) if returns else rng.random((STEPS, columns)) < 0.8,
        behaviour_logp=np.log(rng.uniform(0.1, 0.9, (STEPS, columns))).astype(np.float32),
        state=(),
        versions=np.zeros((STEPS, columns), np.int64),
        final_index=np.zeros((0, 2), np.int64),
        final_obs=np.zeros((0, 3), np.float32),
        returns=numbers(STEPS, columns) if returns else None,
    )


def transitions(rng: np.random.Generator, continuous: bool) -> TransitionBatch:
    return TransitionBatch(
        obs=rng.normal(size=(ROWS, 3)).astype(np.float32),
        actions=rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32) if continuous else rng.integers(0, 4, ROWS),
        rewards=rng.normal(size=ROWS).astype(np.float32),
        discounts=np.full(ROWS, 0.9, np.float32),
        next_obs=rng.normal(size=(ROWS, 3)).astype(np.float32),
        versions=np.zeros(ROWS, np.int64),
        weights=rng.uniform(0.1, 5.0, ROWS).astype(np.float32),
        keys=np.arange(ROWS),
        env_steps_at_sample=0,
    )


def sequences(rng: np.random.Generator) -> SequenceBatch:
    width, shape = BURN + LEARNED, (LEARNED, ROWS)
    first = np.zeros((width + 1, ROWS), bool)
    return SequenceBatch(
        inputs=Inputs(
            rng.normal(size=(width + 1, ROWS, 3)).astype(np.float32),
            first,
            rng.integers(0, 4, first.shape),
            rng.normal(size=first.shape).astype(np.float32),
        ),
        actions=rng.integers(0, 4, (width, ROWS)),
        rewards=rng.normal(size=shape).astype(np.float32),
        discounts=np.full(shape, 0.9, np.float32),
        ahead=np.minimum(np.arange(LEARNED)[:, None] + 2, LEARNED) + np.zeros(shape, np.int64),
        valid=np.ones((width, ROWS), bool),
        versions=np.zeros((width, ROWS), np.int64),
        state=tuple(rng.normal(size=(ROWS, LSTM)).astype(np.float32) for _ in range(2)),
        weights=rng.uniform(0.1, 5.0, ROWS).astype(np.float32),
        keys=np.arange(ROWS),
        env_steps_at_sample=0,
    )


def divided(batch: ReplaySample) -> ReplaySample:
    """Return a batch as the source of a single learner does."""
    return replace(batch, weights=batch.weights / batch.weights.max())


# -- randomness of updates: one learner draws the same numbers as all others together --------------------


class Part:
    """The generator of learner `index`. Its draws depend only on their number, so that they can be drawn again."""

    def __init__(self, index: int) -> None:
        self._index, self._draws = index, 0

    def _rng(self) -> np.random.Generator:
        self._draws += 1
        return np.random.default_rng([self._index, self._draws])

    def permutation(self, number: int) -> Array:
        drawn: Array = self._rng().permutation(number)
        return drawn

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        drawn: Array = self._rng().standard_normal(shape, dtype)
        return drawn


class Whole:
    """The generator of a learner with all data: minibatches and noise are those of all learners together."""

    def __init__(self, learners: int, minibatches: int = 1) -> None:
        self._parts, self._minibatches = [Part(index) for index in range(learners)], minibatches

    def permutation(self, number: int) -> Array:
        learners = len(self._parts)
        orders = [part.permutation(number // learners) for part in self._parts]
        # Row (t, b) of learner i is row t * (k * B) + i * B + b of all.
        rows = [order // COLUMNS * COLUMNS * learners + i * COLUMNS + order % COLUMNS for i, order in enumerate(orders)]
        cuts = [np.array_split(row, self._minibatches) for row in rows]
        return np.concatenate([cut[index] for index in range(self._minibatches) for cut in cuts])

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        kinds, rows, size = shape
        each = (kinds, rows // len(self._parts), size)
        return np.concatenate([part.standard_normal(each, dtype) for part in self._parts], 1)


# -- learners ---------------------------------------------------------------------------------------


class NoSource:
    async def next(self) -> Any:
        raise NotImplementedError

    async def done(self, batch: Any, priorities: Array | None) -> None: ...

    async def close(self) -> None: ...


def build(
    algorithm: Algorithm[Any],
    space: Spaces,
    rng: Any,
    index: int,
    made: LearnerGroup | NodeAggregator | None,
    ring: bool = False,
) -> Learner:
    ctx = FakeContext(Identity("learner", index, run_seed=0, incarnation=1))
    network = algorithm.build_network(space, seed=3)
    update = algorithm.build_update(network, rng)
    optimizer = ScheduledOptimizer(ctx, algorithm.optimizer, update.parameters, BUDGET)
    if made is None:
        exchange: Any = LocalExchange(optimizer)
    else:
        edges = GroupEdges(*map(YieldingEdge, (made.heartbeat, made.join, made.offer, made.combine)))
        exchange = AllReduce(ctx, optimizer, edges)
        if ring:
            exchange = CollectiveAllReduce(ctx, optimizer, edges, algorithm.averages, timeout=10.0)

    async def publish(weights: Any) -> None: ...

    return Learner(ctx, NoSource(), update, exchange, YieldingEdge(publish))


def parameters(learner: Learner) -> Array:
    made: Any = learner._update
    flat: Array = torch.cat([each.detach().reshape(-1) for each in made.parameters]).numpy().copy()
    return flat


def optimizer(**settings: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"learning_rate": 1e-3, "anneal": True, "clip": 0.5, "epsilon": 1e-5, **settings})


VTRACE = VTrace(optimizer=optimizer(), network=NetworkConfig(hidden=(8,), normalize_observations=True))
PPO_ = PPO(
    items=Rounds(unroll_length=STEPS),
    optimizer=optimizer(),
    epochs=2,
    minibatches=3,
    entropy_cost=0.01,
    reward=RewardConfig(normalize=True),
    network=NetworkConfig(hidden=(8,), normalize_observations=True),
)
_ITEMS = Transitions(replay=PRIORITISED)
CASES: dict[str, Algorithm[Any]] = {
    "vtrace": VTRACE,
    "vtrace-sum": replace(VTRACE, reduction="sum"),
    "ppo": PPO_,
    "dqn": DQN(items=_ITEMS, optimizer=optimizer(), target_period=7, network=QNetworkConfig(hidden=(8,), dueling=True)),
    "r2d2": R2D2(
        items=Sequences(replay=PRIORITISED),
        optimizer=optimizer(),
        target_period=7,
        network=QNetworkConfig(hidden=(8,), lstm=LSTM, dueling=True),
    ),
    "dpg": DPG(items=_ITEMS, target_period=7, optimizer=optimizer(), network=DPGNetworkConfig(hidden=(8,))),
    "sac": SAC(items=replace(_ITEMS, n_step=1), optimizer=optimizer(), network=DPGNetworkConfig(hidden=(8,))),
}


def batches(name: str, learners: int, update: int) -> list[Any]:
    rngs = [np.random.default_rng([update, index]) for index in range(learners)]
    if name in ("vtrace", "vtrace-sum", "ppo"):
        return [unroll(rng, returns=name == "ppo") for rng in rngs]
    if name == "r2d2":
        return [sequences(rng) for rng in rngs]
    return [transitions(rng, continuous=name in ("dpg", "sac")) for rng in rngs]


def together(parts: list[Any]) -> Any:
    return concatenate(parts) if isinstance(parts[0], Unroll) else divided(concat_batches(parts))


def build_node(algorithm: Algorithm[Any], index: int, group: LearnerGroup) -> NodeAggregator:
    edges = group.heartbeat, group.join, group.offer, group.combine_node, group.leave
    ctx = FakeContext(Identity("aggregator", index, run_seed=0, incarnation=1))
    return NodeAggregator(ctx, NodeEdges(*map(YieldingEdge, edges)), timeout=3.0, averages=algorithm.averages)


@pytest.mark.parametrize(
    ("learners", "per_node", "updates"),
    [(2, 1, 20), (2, 1, 200), (4, 1, 200), (4, 2, 200), (3, 0, 20)],
    ids=["2-20", "2-200", "4-200", "2x2-200", "ring-20"],
)
@pytest.mark.parametrize("name", CASES)
def test_learners_equal_one_with_all_their_data(name: str, learners: int, per_node: int, updates: int) -> None:
    """`per_node`: 0 for a ring."""
    algorithm = CASES[name]
    space = Spaces(BOX, FORCE if name in ("dpg", "sac") else CHOICE)
    group = LearnerGroup(
        FakeContext(Identity("group", 0, 0)), learners=learners, timeout=3.0, averages=algorithm.averages
    )

    groups: list[Any] = [group] * learners
    if per_node > 1:
        nodes = [build_node(algorithm, index, group) for index in range(learners // per_node)]
        groups = [nodes[index // per_node] for index in range(learners)]

    async def scene() -> None:
        ring = per_node == 0
        many = [build(algorithm, space, Part(index), index, groups[index], ring) for index in range(learners)]
        one = build(algorithm, space, Whole(learners, getattr(algorithm, "minibatches", 1)), 0, None)
        await asyncio.gather(*(each._exchange.begin(each) for each in many))
        start = parameters(one)
        for update in range(updates):
            parts = batches(name, learners, update)
            await one.learn(together(copy.deepcopy(parts)))
            await asyncio.gather(*(each.learn(part) for each, part in zip(many, parts, strict=True)))
            hashes = {weights_sha256(each._update.weights()) for each in many}
            assert len(hashes) == 1, f"the learners differ after update {update}"
        assert {each.updates for each in (one, *many)} == {updates}
        expected = parameters(one)
        assert np.abs(expected - start).max() > 1e-3, "the weights did not change"
        difference = np.linalg.norm(parameters(many[0]) - expected) / np.linalg.norm(expected)
        assert difference < 1e-6

    play(scene(), seconds=900)


@pytest.mark.parametrize("name", ["vtrace", "vtrace-sum", "ppo"])
def test_a_smaller_batch_has_a_smaller_weight(name: str) -> None:
    """As after preemption: two learners with batches of different sizes equal one with both."""
    algorithm = replace(PPO_, minibatches=1) if name == "ppo" else CASES[name]
    group = LearnerGroup(FakeContext(Identity("group", 0, 0)), learners=2, timeout=3.0, averages=algorithm.averages)

    async def scene() -> None:
        many = [build(algorithm, Spaces(BOX, CHOICE), Part(index), index, group) for index in range(2)]
        one = build(algorithm, Spaces(BOX, CHOICE), Part(0), 0, None)
        await asyncio.gather(*(each._exchange.begin(each) for each in many))
        for update in range(20):
            sizes = zip(many, (COLUMNS, 1 + update % 3), strict=True)
            rng = np.random.default_rng(update)
            parts = [(each, unroll(rng, returns=name == "ppo", columns=columns)) for each, columns in sizes]
            await one.learn(concatenate([copy.deepcopy(part) for _, part in parts]))
            await asyncio.gather(*(each.learn(part) for each, part in parts))
        expected = parameters(one)
        assert np.linalg.norm(parameters(many[0]) - expected) / np.linalg.norm(expected) < 1e-6

    play(scene())
