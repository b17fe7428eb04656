"""A learner with shards against one with the whole network: equal losses and gradients, and one state for both."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, YieldingEdge, play, run_until
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
from thespis.core.errors import ThespisError
from thespis.core.learners_config import ParallelConfig
from thespis.core.types import Array, Inputs, Unroll
from thespis.envs.spaces import Spaces
from thespis.exchange.all_reduce import AllReduce
from thespis.exchange.local import LocalExchange
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.exchange.sharded_optimizer import ShardedOptimizer
from thespis.exchange.shards import ShardGroup, ShardLost
from thespis.networks.cuts import cut_network, why_whole
from thespis.networks.partition import StateLayout
from thespis.networks.policy_runner import export_weights
from thespis.roles import Learner, LearnerGroup, Shard, ShardedLearner

STEPS, COLUMNS = 4, 3
BUDGET = Budget(100_000)
VECTOR, IMAGE = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(0, 255, (2, 40, 40), np.uint8)
CHOICE, FORCE = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
ADAM = OptimizerConfig(learning_rate=1e-4, clip=0.5)
RMSPROP = OptimizerConfig(kind="rmsprop", learning_rate=1e-4, epsilon=0.1, clip=40.0)
"""As in IMPALA's paper. The sign alone of a gradient decides on the first steps of Adam, also where it is rounding."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one torch thread: these networks are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
LARGE = ("mlp", "lstm", "nature", "resnet")
"""The networks whose parts are measured, with images of Atari's size."""


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
    pieces = layout.split(state)[1]
    learner = ShardedLearner(ctx, Given(batches or []), update, exchange, published, 1, group, layout, pieces)
    return Made(learner, ctx, update, optimizer, published, shards)


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element."""
    largest = max(float(tensor.abs().max()) for tensor in left)
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True)) / largest


async def compare(case: Case, updates: int) -> None:
    """Make updates in both; losses and gradients differ by rounding only.

    The maximum of a pool is sometimes chosen by rounding, and then the two part. So a network with pools starts each
    update from equal states.
    """
    one, divided, rng, worst = whole(case), sharded(case), np.random.default_rng(1), 0.0
    await one.learner._enter()
    await divided.learner._enter()
    for _ in range(updates):
        batch = batch_of(case, rng)
        if case.algorithm.network.torso == "resnet":
            divided.learner.restore(*copy.deepcopy(one.learner.state()))
            await divided.learner._enter()
        for part, same in zip(await one.parts(batch), await divided.parts(batch), strict=True):
            left, right = await one.gradients(part), await divided.gradients(same)
            loss = abs(left[0].metrics["train/loss"] - right[0].metrics["train/loss"])
            worst = max(worst, loss, difference(left[1], right[1]))
            assert await one.optimizer.apply(left[0].values)
            assert await divided.optimizer.apply(right[0].values)
        for made in (one, divided):
            made.update.observe(batch)
    await divided.learner.close()
    assert worst < 1e-5, worst


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_losses_and_gradients_equal_those_of_a_whole_network(case: Case) -> None:
    play(compare(case, 4), 100.0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_same_over_50_updates(case: Case) -> None:
    play(compare(case, 50), 200.0)


@pytest.mark.parametrize("name", LARGE)
def test_no_process_holds_more_than_0_6_of_the_parameters(name: str) -> None:
    large = replace(CASES[name].spaces, observation_space=spaces.Box(0, 255, (4, 84, 84), np.uint8))
    case = replace(CASES[name], spaces=large) if name in ("nature", "resnet") else CASES[name]
    made, total = sharded(case), sum(each.size for each in export_weights(whole(case).update.network).values())
    held = [made.update.parameters, *(shard._parameters for shard in made.shards)]
    sizes = [sum(parameter.numel() for parameter in parameters) for parameters in held]
    assert total <= sum(sizes) <= 1.02 * total
    assert max(sizes) <= 0.6 * total
    slots = sum(value.numel() for value in next(iter(made.optimizer._optimizer.slots.values())))
    assert slots == sizes[0], "the running averages are divided like the parameters"


async def learn(made: Made) -> None:
    """Learn from all batches."""
    await run_until(made.learner._source.empty, made.learner)  # type: ignore[attr-defined]


def equal(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].shape == right[name].shape and np.array_equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("name", ["ppo", "lstm", "nature"])
@pytest.mark.parametrize("layout", ["tensor=2", "tensor=3", "pipeline=2"])
def test_every_layout_loads_the_state_of_every_other(name: str, layout: str) -> None:
    case = replace(CASES[name], parallel=layout)
    rng = np.random.default_rng(2)
    batches = [batch_of(case, rng) for _ in range(2)]

    async def scene() -> None:
        made = sharded(case, batches)
        await learn(made)
        arrays, values = await made.learner.snapshot()
        assert values["updates"] == 2
        assert any(np.abs(arrays[name]).max() > 0 for name in arrays if name.startswith("exchange/mean"))
        one = whole(case)
        one.learner.restore(*copy.deepcopy((arrays, values)))
        assert equal(one.learner.state()[0], arrays)
        assert equal(one.update.weights(), made.published.weights), "actors get whole weights"
        for other in ("tensor=2", "tensor=3", "pipeline=2"):
            again = sharded(replace(case, parallel=other), incarnation=7)
            again.learner.restore(*copy.deepcopy(one.learner.state()))
            assert equal((await again.learner.snapshot())[0], arrays)
            await again.learner.close()

    play(scene())


def test_a_learner_whose_shard_was_restarted_ends() -> None:
    case, rng = CASES["mlp"], np.random.default_rng(2)

    async def scene() -> None:
        made = sharded(case)
        await made.learner._enter()
        await made.learner.learn(batch_of(case, rng))
        made.shards[0]._session = None
        with pytest.raises(ShardLost):
            await made.learner.learn(batch_of(case, rng))
        with pytest.raises(ShardLost):
            await made.learner.snapshot()
        await made.learner.close()

    play(scene())


def test_a_learner_that_is_cancelled_leaves_no_thread() -> None:
    case, rng = CASES["lstm"], np.random.default_rng(2)

    async def scene() -> None:
        made = sharded(case)
        await made.learner._enter()
        before = threading.active_count()
        asked = asyncio.Event()

        async def hang(*_: Any) -> None:
            asked.set()
            await asyncio.get_running_loop().create_future()

        made.learner._shards._shards[0] = made.learner._shards._shards[0]._replace(forward=YieldingEdge(hang))
        learning = asyncio.ensure_future(made.learner.learn(batch_of(case, rng)))
        await asked.wait()
        assert threading.active_count() == before + 1
        learning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await learning
        await made.learner.close()
        while threading.active_count() > before:
            await asyncio.sleep(0.01)

    play(scene())


def test_gradients_that_are_not_finite_are_applied_nowhere() -> None:
    case, rng = CASES["mlp"], np.random.default_rng(2)

    async def scene() -> None:
        made = sharded(case)
        await made.learner._enter()
        before = (await made.learner.snapshot())[0]
        found = await made.learner._compute("learn", 1, made.update.gradients, batch_of(case, rng), False)
        made.shards[0]._turn.gradients[0][:] = np.nan
        assert not await made.optimizer.apply(found.values)
        after = (await made.learner.snapshot())[0]
        assert equal(before, after)
        await made.learner.close()

    play(scene())


def test_learners_with_shards_are_equal_among_each_other() -> None:
    """Two learners with two processes each, against two with a whole network."""
    case, updates = CASES["mlp"], 20

    async def scene() -> None:
        results = []
        for build in (whole, sharded):
            group = LearnerGroup(FakeContext(Identity("group", 0, 0)), learners=2, timeout=3.0, averages=True)
            many = [in_group(case, build(case), index, group) for index in range(2)]
            await asyncio.gather(*(made.learner._enter() for made in many))
            for update in range(updates):
                parts = [batch_of(case, np.random.default_rng([update, index])) for index in range(2)]
                await asyncio.gather(*(made.learner.learn(part) for made, part in zip(many, parts, strict=True)))
            states = [(await made.learner.snapshot())[0] for made in many]
            names = [name for name in states[0] if not name.endswith("seconds")]
            assert all(np.array_equal(states[0][name], states[1][name]) for name in names)
            results.append({name: states[0][name] for name in names if name.startswith("weights/")})
            await asyncio.gather(*(made.learner.close() for made in many))
        assert results[0].keys() == results[1].keys()
        assert max(np.abs(results[0][name] - results[1][name]).max() for name in results[0]) < 1e-5

    play(scene())


def in_group(case: Case, made: Made, index: int, group: LearnerGroup) -> Made:
    """Let a learner exchange gradients with the group."""
    made.ctx.identity = replace(made.ctx.identity, index=index)
    edges = GroupEdges(*(YieldingEdge(each) for each in (group.heartbeat, group.join, group.offer, group.combine)))
    exchange = AllReduce(made.ctx, made.optimizer, edges)
    made.learner._exchange, made.learner._shared_update = exchange, made.update
    return made


@pytest.mark.parametrize(
    ("network", "parallel", "reason"),
    [
        (NetworkConfig(hidden=(2, 64)), "tensor=3", "has 2 units for 3 processes"),
        (NetworkConfig(hidden=(64,)), "pipeline=2", "at least two layers"),
    ],
)
def test_what_cannot_be_divided(network: NetworkConfig, parallel: str, reason: str) -> None:
    made = VTrace(network=network).build_network(Spaces(VECTOR, CHOICE), seed=0)
    assert reason in why_whole(made, ParallelConfig(parallel))


def test_a_network_with_unknown_layers_stays_whole() -> None:
    made: Any = VTrace().build_network(Spaces(VECTOR, CHOICE), seed=0)
    made.value = torch.nn.Sequential(torch.nn.Bilinear(64, 64, 1))
    assert "its layer 'value.0' is a Bilinear" in why_whole(made, ParallelConfig("tensor=2"))


@pytest.mark.parametrize("parallel", ["tensor", "tensor=1", "pipeline=3", "data=2", "tensor=1000", ""])
def test_other_layouts_are_refused(parallel: str) -> None:
    with pytest.raises(ThespisError, match="--parallel"):
        ParallelConfig(parallel)
