"""Learners with a whole and with a divided network, and random batches for both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fakes import FakeContext, YieldingEdge, run_until
from gymnasium import spaces

from thespis.algorithms.appo import APPO
from thespis.algorithms.base import Algorithm
from thespis.algorithms.ppo import PPO
from thespis.algorithms.updates.update import Gradients
from thespis.algorithms.vtrace import VTrace
from thespis.core.budget import Budget
from thespis.core.config import NetworkConfig, OptimizerConfig
from thespis.core.context import Identity
from thespis.core.edges import GroupEdges, ShardEdges
from thespis.core.learners_config import ParallelConfig
from thespis.core.types import Array, Inputs, Unroll
from thespis.envs.spaces import Spaces
from thespis.exchange.all_reduce import AllReduce
from thespis.exchange.local import LocalExchange
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.exchange.sharded_optimizer import ShardedOptimizer
from thespis.exchange.shards import ShardGroup
from thespis.networks.cuts import cut_network
from thespis.networks.partition import StateLayout
from thespis.networks.policy_runner import export_weights
from thespis.roles import Learner, LearnerGroup, Shard, ShardedLearner
from thespis.roles.sharded_learner import RemoteParts

STEPS, COLUMNS = 4, 3
BUDGET = Budget(100_000)
VECTOR, IMAGE = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(0, 255, (2, 40, 40), np.uint8)
CHOICE, FORCE = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
ADAM = OptimizerConfig(learning_rate=1e-4, clip=0.5)
RMSPROP = OptimizerConfig(kind="rmsprop", learning_rate=1e-4, epsilon=0.1, clip=40.0)
"""As in IMPALA's paper. The sign alone of a gradient decides on the first steps of Adam, also where it is rounding."""


@dataclass(frozen=True)
class Case:
    algorithm: Algorithm[Any]
    spaces: Spaces
    parallel: str

    @property
    def optimizer(self) -> OptimizerConfig:
        return self.algorithm.optimizer

    @property
    def model(self) -> ParallelConfig:
        return ParallelConfig(self.parallel)


def case(algorithm: type[Any], network: NetworkConfig, see: Any, do: Any = CHOICE, parallel: str = "tensor=2") -> Case:
    optimizer = RMSPROP if see is IMAGE else ADAM
    return Case(algorithm(network=network, optimizer=optimizer), Spaces(see, do), parallel)


CASES = {
    "mlp": case(VTrace, NetworkConfig(), VECTOR),
    "three layers, three processes": case(VTrace, NetworkConfig(hidden=(32, 16, 16)), VECTOR, FORCE, "tensor=3"),
    "several observations": case(VTrace, NetworkConfig(), spaces.Dict({"a": VECTOR, "b": VECTOR})),
    "ppo": case(PPO, NetworkConfig(normalize_observations=True), VECTOR, FORCE),
    "appo": case(APPO, NetworkConfig(activation="relu"), VECTOR),
    "lstm": case(VTrace, NetworkConfig(lstm=256), VECTOR),
    "ppo with an lstm": case(PPO, NetworkConfig(lstm=16), VECTOR),
    "nature": case(VTrace, NetworkConfig(torso="nature"), IMAGE),
    "resnet": case(VTrace, NetworkConfig(torso="resnet"), IMAGE),
}
CASES |= {
    f"pipeline, {name}": replace(each, parallel="pipeline=2") for name, each in CASES.items() if "three" not in name
}


def batch_of(case: Case, rng: np.random.Generator) -> Unroll:
    """A random batch; environment 1 ends an episode after step 1 by truncation."""
    observations, actions = case.spaces.observation_space, case.spaces.action_space
    shape = (STEPS + 1, COLUMNS)

    def observe(*lead: int) -> Any:
        if isinstance(observations, spaces.Dict):
            return {name: rng.normal(size=(*lead, *VECTOR.shape)).astype(np.float32) for name in observations}
        if observations.dtype == np.uint8:
            return rng.integers(0, 256, (*lead, *observations.shape), dtype=np.uint8)
        return rng.normal(size=(*lead, *observations.shape)).astype(np.float32)

    def act(*lead: int) -> Array:
        if isinstance(actions, spaces.Discrete):
            return rng.integers(0, actions.n, lead)
        return rng.normal(size=(*lead, *actions.shape)).astype(np.float32)

    first = np.zeros(shape, bool)
    first[2, 1] = True
    truncated = np.zeros((STEPS, COLUMNS), bool)
    truncated[1, 1] = True
    lstm = case.algorithm.network.lstm
    return Unroll(
        inputs=Inputs(observe(*shape), first, act(*shape), rng.normal(size=shape).astype(np.float32)),
        actions=act(STEPS, COLUMNS),
        rewards=rng.normal(size=(STEPS, COLUMNS)).astype(np.float32),
        terminated=rng.random((STEPS, COLUMNS)) < 0.1,
        truncated=truncated,
        valid=rng.random((STEPS, COLUMNS)) < 0.9,
        behaviour_logp=np.log(rng.uniform(0.1, 0.9, (STEPS, COLUMNS))).astype(np.float32),
        state=tuple(rng.normal(size=(COLUMNS, lstm)).astype(np.float32) for _ in range(2)) if lstm else (),
        versions=np.zeros((STEPS, COLUMNS), np.int64),
        final_index=np.array([[1, 1]]),
        final_obs=observe(1),
        returns=None,
    )


class Given:
    """A source of given batches, which then blocks."""

    def __init__(self, batches: list[Unroll]) -> None:
        self._batches = list(batches)
        self.empty = asyncio.Event()

    async def next(self) -> Unroll:
        if self._batches:
            return self._batches.pop(0)
        self.empty.set()
        return await asyncio.get_running_loop().create_future()

    async def done(self, batch: Any, priorities: Any) -> None: ...

    async def close(self) -> None: ...


class Published:
    name = "learner.weights.publish"

    def __init__(self) -> None:
        self.weights: dict[str, Array] = {}

    async def __call__(self, weights: Any) -> None:
        self.weights = weights.weights


@dataclass
class Made:
    """A learner, and what a test looks at."""

    learner: Learner
    ctx: FakeContext
    update: Any
    optimizer: ScheduledOptimizer
    published: Published
    shards: list[Shard]

    async def gradients(self, part: Any) -> tuple[Gradients, list[torch.Tensor]]:
        """Return the update's result for a batch or minibatch, and the whole gradients."""
        found = await self.learner._compute("learn", 1, self.update.gradients, part, True)
        return found, await self.optimizer.whole([value.clone() for value in found.values])

    async def parts(self, batch: Unroll) -> list[Any]:
        if self.update.minibatches is None:
            return [batch]
        iterator, parts = iter(self.update.minibatches(batch)), []
        while (found := await self.learner._take(iterator)) is not None:
            parts.append(found[1])
        return parts


def context(incarnation: int = 0) -> FakeContext:
    return FakeContext(Identity("learner", 0, run_seed=3, incarnation=incarnation))


def whole(case: Case, batches: list[Unroll] | None = None) -> Made:
    ctx, published = context(), Published()
    network = case.algorithm.build_network(case.spaces, seed=3)
    update = case.algorithm.build_update(network, np.random.default_rng(0))
    optimizer = ScheduledOptimizer(ctx, case.optimizer, update.parameters, BUDGET)
    exchange = LocalExchange(optimizer)
    learner = Learner(ctx, Given(batches or []), update, exchange, published)
    return Made(learner, ctx, update, optimizer, published, [])


def sharded(case: Case, batches: list[Unroll] | None = None, incarnation: int = 0) -> Made:
    ctx, published, shards = context(incarnation), Published(), []
    edges: list[ShardEdges] = []
    for process in range(1, case.model.processes):
        parts = cut_network(case.algorithm.build_network(case.spaces, seed=3), case.model).parts(process)
        shards.append(Shard(FakeContext(Identity("shard", process - 1, run_seed=3)), *parts, case.optimizer))
        edges.append(ShardEdges(*(YieldingEdge(getattr(shards[-1], method)) for method in ShardEdges._fields)))
    network: Any = case.algorithm.build_network(case.spaces, seed=3)
    state = {f"weights/{name}": value for name, value in export_weights(network).items()}
    group, cut = ShardGroup(ctx, edges), cut_network(network, case.model)
    own = cut.divide(group)
    layout = StateLayout(cut.names, [name for name, _ in own.named_parameters()], cut.partitions)
    update = case.algorithm.build_update(own, np.random.default_rng(0))
    optimizer = ShardedOptimizer(ctx, case.optimizer, update.parameters, BUDGET, group, layout)
    exchange = LocalExchange(optimizer)
    remote = RemoteParts(group, layout, layout.split(state)[1])
    source = Given(batches or [])
    learner = ShardedLearner(ctx, source, update, exchange, published, publish_every=1, remote=remote)
    return Made(learner, ctx, update, optimizer, published, shards)


async def learn(made: Made) -> None:
    """Learn from all batches."""
    await run_until(made.learner._source.empty, made.learner)  # type: ignore[attr-defined]


def equal(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].shape == right[name].shape and np.array_equal(left[name], right[name]) for name in left
    )


def in_group(case: Case, made: Made, index: int, group: LearnerGroup) -> Made:
    """Let a learner exchange gradients with the group."""
    made.ctx.identity = replace(made.ctx.identity, index=index)
    edges = GroupEdges(*(YieldingEdge(each) for each in (group.heartbeat, group.join, group.offer, group.combine)))
    exchange = AllReduce(made.ctx, made.optimizer, edges)
    made.learner._exchange, made.learner._shared_update = exchange, made.update
    return made


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element."""
    largest = max(float(tensor.abs().max()) for tensor in left)
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True)) / largest
