"""Error feedback: the content of its memory, its effect on training, and when a memory is saved or lost."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, UnusedReplica, YieldingEdge, play

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Identity
from thespis.core.edges import GroupEdges, ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.learners_config import CompressionConfig
from thespis.core.payloads import CompressedGradient
from thespis.core.types import Array
from thespis.exchange.all_reduce import AllReduce
from thespis.exchange.codecs import cut_sections
from thespis.exchange.compression import Compressor, decompress
from thespis.exchange.push_pull import PushPull
from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
from thespis.roles import LearnerGroup, ParameterServer

METHODS = ("float16", "bfloat16", "int8", "topk", "sign", "powersgd")
SECTIONS = np.array([[20, 10]], np.int32)
BUDGET = Budget(10_000)
SGD = OptimizerConfig(kind="sgd", learning_rate=0.1, clip=1.0)


def settings(method: str, **rest: Any) -> CompressionConfig:
    return CompressionConfig(**{"gradients": method, **({"gradients_rank": 1} if method == "powersgd" else {}), **rest})


def compressor(method: str, restarts: int = 0, **rest: Any) -> Compressor:
    ctx = FakeContext(Identity("worker", 0, run_seed=0, restarts=restarts))
    return Compressor(ctx, settings(method, **rest), SECTIONS)


def gradient(seed: int, size: int = 200) -> Array:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def sent(made: Compressor, vector: Array) -> Array:
    message = made.encode(vector)
    made.commit()
    return decompress(message)


# -- error feedback ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_everything_is_sent_or_remembered(method: str) -> None:
    made, total, arrived = compressor(method), np.zeros(200), np.zeros(200)
    for update in range(50):
        total += gradient(update)
        arrived += sent(made, gradient(update))
    np.testing.assert_allclose(arrived + made.state()["memory"], total, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_memory_stays_bounded(method: str) -> None:
    """Each method is a contraction: the error is shorter than the vector."""
    made, sizes = compressor(method), []
    for update in range(600):
        sent(made, gradient(update))
        sizes.append(np.linalg.norm(made.state()["memory"]))
    assert max(sizes[300:]) < 2 * max(sizes[:300])


def distance(method: str, feedback: bool) -> float:
    """Distance to the optimum of the mean of four quadratics, whose gradients never vanish together."""
    targets = np.random.default_rng(0).standard_t(3, size=(4, 200)).astype(np.float32)
    workers = [compressor(method, gradients_feedback=feedback) for _ in targets]
    best, x = targets.mean(axis=0), np.zeros(200, np.float32)
    for update in range(4000):
        mean = np.mean([sent(made, x - target) for made, target in zip(workers, targets, strict=True)], axis=0)
        x -= np.float32(10 / (update + 200)) * mean
    return float(np.linalg.norm(x - best) / np.linalg.norm(best))


@pytest.mark.parametrize("method", ["topk", "sign", "powersgd"])
def test_several_workers_find_the_optimum_only_with_error_feedback(method: str) -> None:
    assert distance(method, feedback=True) < 0.06
    assert distance(method, feedback=False) > 0.6


# -- memories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_compressor_continues_to_the_bit(method: str) -> None:
    made = compressor(method)
    for update in range(5):
        sent(made, gradient(update))
    again = compressor(method)
    again.restore({name: array.copy() for name, array in made.state().items()})
    for update in range(5, 10):
        np.testing.assert_array_equal(sent(again, gradient(update)), sent(made, gradient(update)))


def test_a_gradient_that_is_not_delivered_changes_nothing() -> None:
    made, other = compressor("powersgd"), compressor("powersgd")
    for each in (made, other):
        sent(each, gradient(0))
    made.encode(gradient(1))
    np.testing.assert_array_equal(sent(made, gradient(2)), sent(other, gradient(2)))


@pytest.mark.parametrize(("method", "kept"), [("sign", {}), ("topk", {"number": 1})])
def test_a_restarted_sender_has_no_memory_and_this_is_counted(method: str, kept: dict[str, int]) -> None:
    """Only the progress of the warm-up is kept."""
    before = compressor(method)
    sent(before, gradient(0))
    after = compressor(method, restarts=1)
    after.restore(before.state())
    assert after.state() == kept
    assert after._ctx.counters() == {"gradients/lost_memories": 1}  # type: ignore[attr-defined]


def test_a_restarted_sender_is_counted_once() -> None:
    made = compressor("topk", restarts=1)
    made.forget()
    assert made._ctx.counters() == {"gradients/lost_memories": 1}  # type: ignore[attr-defined]
    sent(made, gradient(0))
    made.forget()
    assert "memory" not in made.state()
    assert made._ctx.counters()["gradients/lost_memories"] == 2  # type: ignore[attr-defined]


def test_another_method_keeps_the_memory_and_drops_factors_of_another_rank() -> None:
    before = compressor("powersgd")
    sent(before, gradient(0))
    for after in (compressor("topk"), compressor("powersgd", gradients_rank=2)):
        after.restore(before.state())
        assert list(after.state()) == ["memory"]
    without = compressor("sign", gradients_feedback=False)
    without.restore(before.state())
    assert without.state() == {}


@pytest.mark.parametrize("share", [0.01, 0.4])
def test_topk_sends_less_and_less_during_the_warm_up(share: float) -> None:
    made = compressor("topk", gradients_share=share, gradients_warm_up=10)
    numbers = [np.count_nonzero(sent(made, gradient(update))) for update in range(12)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == max(50, 200 * share) and numbers[5] == max(10, 200 * share)  # 0.25, and sqrt(0.25 * 0.01)
    assert numbers[9] >= numbers[10] == numbers[11] == 200 * share


def test_bytes_are_counted_before_and_after() -> None:
    made = compressor("topk", gradients_warm_up=0)
    message = made.encode(gradient(0))
    assert message.size == 200 and message.nbytes == 8 + 2 * 8
    counted = made._ctx.counters()  # type: ignore[attr-defined]
    assert counted == {"gradients/raw_bytes": 800, "gradients/wire_bytes": message.nbytes}


# -- workers of a parameter server ------------------------------------------------------------------


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.Linear(10, 3))


def worker(shards: int, method: str, restarts: int = 0) -> PushPull:
    servers = [
        ParameterServer(FakeContext(Identity("server", index, run_seed=0)), optimizer=SGD, budget=BUDGET)
        for index in range(shards)
    ]
    ctx = FakeContext(Identity("worker", 0, run_seed=0, restarts=restarts))
    joins, pushes = (tuple(YieldingEdge(getattr(shard, name)) for shard in servers) for name in ("join", "push"))
    return PushPull(ctx, network(), ServerEdges(joins, pushes), clip=1.0, compression=settings(method))


def gradients(like: torch.nn.Module, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn_like(parameter) for parameter in like.parameters()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shards", [1, 3])
def test_servers_apply_what_a_worker_sends(method: str, shards: int) -> None:
    """With plain gradient descent, the parameters have moved by the sum of all gradients minus the memory."""

    async def scene() -> None:
        made, like = worker(shards, method), network()
        await made.begin(UnusedReplica())
        start, total = made._client._values.copy(), np.zeros(243)
        for update in range(20):
            given = gradients(like, update)
            flat = torch.cat([each.reshape(-1) for each in given]).numpy()
            total += flat / max(1.0, np.linalg.norm(flat))  # clipped before it is compressed
            assert await made.apply(given)
        saved = made.state()
        memory = np.concatenate([saved[f"compression/{shard}/memory"] for shard in range(shards)])
        np.testing.assert_allclose(start - made._client._values, 0.1 * (total - memory), atol=1e-5)
        again = worker(shards, method)
        again.restore(saved)
        for name, array in again.state().items():
            np.testing.assert_array_equal(array, saved[name])
        assert worker(shards, method, restarts=1).state() == {}

    play(scene())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_does_not_enter_the_memory(value: float) -> None:
    async def scene() -> None:
        made, like = worker(1, "topk"), network()
        await made.begin(UnusedReplica())
        await made.apply(gradients(like, 0))
        before = made.state()["compression/0/memory"].copy()
        bad = gradients(like, 1)
        bad[0][0, 0] = value
        assert not await made.apply(bad)
        np.testing.assert_array_equal(made.state()["compression/0/memory"], before)

    play(scene())


def test_a_rank_that_compresses_no_layer_is_refused() -> None:
    edge = YieldingEdge(UnusedReplica().snapshot)
    with pytest.raises(ThespisError, match="of rank 50 compresses no layer"):
        PushPull(
            FakeContext(Identity("worker", 0, run_seed=0)), network(), ServerEdges((), (edge,)), clip=0.0,
            compression=CompressionConfig(gradients="powersgd", gradients_rank=50),
        )  # fmt: skip


# -- learners of a group ----------------------------------------------------------------------------


class Equal:
    """A learner whose state no other learner needs, because all begin with the same."""

    updates = 0

    async def snapshot(self) -> Any:
        return {}, {}

    def restore(self, arrays: Any, values: Any) -> None: ...


class Group:
    """Learners and their group."""

    def __init__(self, method: str, learners: int = 2, restarts: int = 0) -> None:
        self.ctx = FakeContext(Identity("group", 0, run_seed=0, restarts=restarts))
        self.group = LearnerGroup(self.ctx, learners=learners, timeout=4.0, averages=True, compression=settings(method))
        self.networks = [network() for _ in range(learners)]
        methods = (self.group.heartbeat, self.group.join, self.group.offer, self.group.combine)
        edges = GroupEdges(*map(YieldingEdge, methods))
        self.learners = []
        for index, made in enumerate(self.networks):
            ctx = FakeContext(Identity("learner", index, run_seed=0))
            optimizer = ScheduledOptimizer(ctx, SGD, list(made.parameters()), BUDGET)
            self.learners.append(AllReduce(ctx, optimizer, edges, settings(method)))

    async def begin(self) -> None:
        # The heartbeat of a learner would sleep for a second.
        for each in self.learners:
            each._heartbeats = asyncio.get_running_loop().create_future()
        await asyncio.gather(*(each.begin(Equal()) for each in self.learners))

    async def apply(self, *given: list[torch.Tensor] | None) -> list[bool]:
        for each in self.learners:
            each.begin_batch(1)
        return list(await asyncio.gather(*(each.apply(mine) for each, mine in zip(self.learners, given, strict=True))))

    def flat(self, index: int) -> Array:
        made: Array = torch.cat([p.detach().reshape(-1) for p in self.networks[index].parameters()]).numpy().copy()
        return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("learners", [2, 4])
def test_learners_stay_equal_and_move_by_all_gradients(learners: int, method: str) -> None:
    """Two learners receive what the other has sent; four receive a new encoding of the mean."""

    async def scene() -> None:
        made, total = Group(method, learners), np.zeros(243)
        await made.begin()
        start = made.flat(0)
        for update in range(20):
            seeds = range(learners * update, learners * (update + 1))
            given = [[0.01 * each for each in gradients(made.networks[0], seed)] for seed in seeds]
            total += sum(torch.cat([each.reshape(-1) for each in mine]).numpy() for mine in given) / learners
            assert await made.apply(*given) == [True] * learners
            for other in range(1, learners):
                np.testing.assert_array_equal(made.flat(0), made.flat(other))
        held = sum(each.state()["compression/memory"] for each in made.learners) / learners
        saved = made.group.state()[0]
        assert ("memory" in saved) == (learners == 4)
        held += saved.get("memory", 0.0)
        np.testing.assert_allclose(start - made.flat(0), 0.1 * (total - held), atol=1e-5)

    play(scene())


@pytest.mark.parametrize(("learners", "encodings"), [(2, 2 + 1), (3, 3 + 2), (4, 4 + 1)])
def test_the_reply_of_a_group_is_counted_once(learners: int, encodings: int) -> None:
    """A reply to one of three learners consists of two encodings, so it has twice the bytes."""

    async def scene() -> None:
        made = Group("sign", learners)
        await made.begin()
        await made.apply(*(gradients(made.networks[0], seed) for seed in range(learners)))
        counted = [made.ctx.counters(), *(each._ctx.counters() for each in made.learners)]  # type: ignore[attr-defined]
        one = counted[1]
        for name, number in ("raw_bytes", learners + 1), ("wire_bytes", encodings):
            assert sum(each[f"gradients/{name}"] for each in counted) == number * one[f"gradients/{name}"]

    play(scene())


def test_a_skipped_step_leaves_the_memories_of_all_learners() -> None:
    async def scene() -> None:
        made = Group("topk")
        await made.begin()
        await made.apply(*(gradients(made.networks[0], seed) for seed in (0, 1)))
        before = [each.state()["compression/memory"].copy() for each in made.learners]
        bad = gradients(made.networks[0], 2)
        bad[1][0] = np.nan
        for other in (bad, None):
            assert await made.apply(gradients(made.networks[0], 3), other) == [False, False]
            for each, memory in zip(made.learners, before, strict=True):
                np.testing.assert_array_equal(each.state()["compression/memory"], memory)
        assert made.ctx.counters()["group/vetoed_rounds"] == 2

    play(scene())


def test_the_state_of_another_learner_brings_no_memory() -> None:
    async def scene() -> None:
        made = Group("sign")
        await made.begin()
        await made.apply(*(gradients(made.networks[0], seed) for seed in (0, 1)))
        one, two = made.learners
        two.restore(one.state())
        assert "compression/memory" not in two.state()
        assert two._ctx.counters()["gradients/lost_memories"] == 1  # type: ignore[attr-defined]
        own = one.state()["compression/memory"].copy()
        one.restore(one.state())
        np.testing.assert_array_equal(one.state()["compression/memory"], own)

    play(scene())


def test_a_group_keeps_its_memory_in_a_checkpoint_and_loses_it_in_a_restart() -> None:
    async def scene() -> None:
        made = Group("topk", 4)
        await made.begin()
        await made.apply(*(gradients(made.networks[0], seed) for seed in range(4)))
        arrays, values = made.group.state()
        again = Group("topk", 4)
        again.group.restore(arrays, values)
        for name, array in again.group.state()[0].items():
            np.testing.assert_array_equal(array, arrays[name])
        assert LearnerGroup.description.forgets, "a restarted group is not restored"
        restarted = Group("topk", 4, restarts=1)
        await restarted.begin()
        await restarted.apply(*(gradients(made.networks[0], seed) for seed in range(4)))
        assert restarted.ctx.counters()["gradients/lost_memories"] == 1

    play(scene())


def test_compressed_messages_describe_themselves() -> None:
    layout = [("w", [30, 4, 2, 2]), ("b", [30])]
    sections = cut_sections(layout, slice(0, 510))
    for method in METHODS:
        ctx = FakeContext(Identity("worker", 0, run_seed=0))
        message = Compressor(ctx, settings(method), sections).encode(gradient(0, 510))
        assert isinstance(message, CompressedGradient) and decompress(message).shape == (510,)
    raw = gradient(1)
    assert decompress(raw) is raw


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"gradients_share": 0.1}, "give --gradients topk"),
        ({"gradients": "sign", "gradients_rank": 3}, "give --gradients powersgd"),
        ({"gradients": "sign", "gradients_warm_up": 3}, "give --gradients topk"),
        ({"gradients_feedback": False}, "leave off --gradients-feedback"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ThespisError, match=complaint):
        CompressionConfig(**given)
