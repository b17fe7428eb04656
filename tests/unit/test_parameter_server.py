"""A shard alone: which gradients take effect, when and how often, and its state after a crash."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, play, settle
from pushes import SGD, gradient_meta, values

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Identity
from thespis.core.types import Version
from thespis.roles import ParameterServer


def shard(index: int = 0, epoch: int = 0, optimizer: OptimizerConfig = SGD, **settings: Any) -> ParameterServer:
    ctx = FakeContext(Identity("server", index, run_seed=0, epoch=epoch))
    return ParameterServer(ctx, optimizer=optimizer, budget=Budget(1000), **settings)


def counted(server: ParameterServer) -> dict[str, int]:
    return server._ctx.take_report().counters


# -- the initial parameters ----------------------------------------------------------------------


def test_the_first_to_join_brings_the_parameters_and_everybody_gets_them() -> None:
    async def scene() -> None:
        server = shard()
        early = asyncio.create_task(server.pull(None))
        await settle()
        assert not early.done(), "there are no parameters yet"
        await server.join(0, values(1, 2), [("w", [2])])
        other, _ = await server.join(1, values(8, 9), [("w", [2])])
        assert other.values.tolist() == [1, 2]
        first = await early
        assert first is not None and first.values.tolist() == [1, 2]
        assert await server.pull(first.version) is None

    play(scene())


# -- asynchronous -----------------------------------------------------------------------------------


def test_async_applies_each_gradient_and_measures_its_staleness() -> None:
    async def scene() -> None:
        server = shard()
        await server.join(0, values(0), [("w", [1])])
        for worker, at in ((0, 0), (1, 0), (0, 1), (1, 2)):
            answer = await server.push(values(1), gradient_meta(worker, at, number=at + 1))
        assert answer is not None and answer.version == (0, 4) and answer.values.tolist() == [-4]
        report = server._ctx.take_report()
        assert (report.stats["lag"].mean, report.stats["lag"].maximum) == (0.75, 1)
        assert report.counters == {"updates": 4}

    play(scene())


def test_what_was_given_out_does_not_change_under_the_receiver() -> None:
    async def scene() -> None:
        server = shard()
        joined, _ = await server.join(0, values(0), [("w", [1])])
        await server.push(values(1), gradient_meta(0))
        assert joined.values.tolist() == [0]

    play(scene())


def test_the_learning_rate_falls_with_the_steps_of_all_workers() -> None:
    async def scene() -> None:
        server = shard(optimizer=OptimizerConfig(kind="sgd", learning_rate=1.0, anneal=True))
        await server.join(0, values(0), [("w", [1])])
        await server.push(values(1), gradient_meta(0, steps=250))
        answer = await server.push(values(1), gradient_meta(1, steps=250))
        assert answer is not None and answer.values.tolist() == [-0.75 - 0.5]

    play(scene())


@pytest.mark.parametrize(
    ("tau", "rate", "aware", "stable"),
    [
        (2, 0.5, False, True),
        (3, 0.5, False, False),
        (8, 0.5, False, False),
        (2, 0.61, False, True),
        (2, 0.63, False, False),
        (8, 0.18, False, True),
        (8, 0.19, False, False),
        (3, 0.5, True, True),
        (8, 0.5, True, True),
        (32, 0.5, True, True),
    ],
)
def test_a_delayed_quadratic_is_stable_exactly_where_the_bound_says(
    tau: int, rate: float, aware: bool, stable: bool
) -> None:
    """x' = x - rate * x_{k - tau} converges if and only if rate < 2 sin(pi / (4 tau + 2))."""
    assert (rate / (tau if aware else 1) < 2 * math.sin(math.pi / (4 * tau + 2))) is stable

    async def scene() -> None:
        server = shard(optimizer=OptimizerConfig(kind="sgd", learning_rate=rate), staleness_aware=aware)
        joined, _ = await server.join(0, values(1), [("w", [1])])
        seen = [joined]
        for k in range(120 * (tau + 1)):
            old = seen[max(0, k - tau)]  # the gradient of x^2 / 2 is x
            answer = await server.push(old.values, gradient_meta(0, old.version.update, number=k + 1))
            assert answer is not None
            seen.append(answer)
            if abs(answer.values[0]) > 1e6:
                break
        swing = np.abs([float(each.values[0]) for each in seen])
        early, late = swing[len(swing) // 4 : len(swing) // 2].max(), swing[-len(swing) // 4 :].max()
        assert late < early if stable else late > early

    play(scene())


# -- sharding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rmsprop", "adam"])
def test_three_shards_equal_one_to_the_bit(kind: str) -> None:
    async def scene() -> None:
        rng = np.random.default_rng(0)
        optimizer = OptimizerConfig(kind=kind, learning_rate=0.1, anneal=True)  # type: ignore[arg-type]
        start = rng.normal(size=101).astype(np.float32)
        whole, parts = shard(optimizer=optimizer), [shard(i, optimizer=optimizer) for i in range(3)]
        cuts = [slice(0, 33), slice(33, 67), slice(67, 101)]
        await whole.join(0, start, [("w", [101])])
        for part, where in zip(parts, cuts, strict=True):
            await part.join(0, start[where], [("w", [101])])
        for number in range(20):
            gradient = rng.normal(size=101).astype(np.float32)
            result = gradient_meta(number % 4, number, number=number + 1)
            one = await whole.push(gradient, result)
            many = [await part.push(gradient[where], result) for part, where in zip(parts, cuts, strict=True)]
            assert one is not None
            assert one.values.tobytes() == b"".join(each.values.tobytes() for each in many if each is not None)

    play(scene())


# -- synchronous ------------------------------------------------------------------------------------


def test_a_barrier_waits_for_all_and_averages() -> None:
    async def scene() -> None:
        server = shard(mode="sync", quorum=3)
        await server.join(0, values(0), [("w", [1])])
        pushes = [asyncio.create_task(server.push(values(g), gradient_meta(w))) for w, g in ((2, 3), (0, 6))]
        await settle()
        assert not any(push.done() for push in pushes)
        pushes.append(asyncio.create_task(server.push(values(0), gradient_meta(1))))
        answers = await asyncio.gather(*pushes)
        assert [each.values.tolist() for each in answers if each is not None] == [[-3]] * 3
        assert counted(server) == {"updates": 1}

    play(scene())


def test_averages_are_weighted_by_the_steps_behind_them() -> None:
    async def scene() -> None:
        server = shard(mode="sync", quorum=2)
        await server.join(0, values(0), [("w", [1])])
        first = asyncio.create_task(server.push(values(4), gradient_meta(0, weight=30.0)))
        await settle()
        answer = await server.push(values(8), gradient_meta(1, weight=10.0))
        assert answer is not None and answer.values.tolist() == [-5]
        await first

    play(scene())


def test_a_backup_worker_that_comes_late_is_dropped_counted_and_brought_up_to_date() -> None:
    async def scene() -> None:
        server = shard(mode="sync", quorum=2)
        await server.join(0, values(0), [("w", [1])])
        first = asyncio.create_task(server.push(values(1), gradient_meta(0)))
        await server.push(values(1), gradient_meta(1))
        await first
        late = await server.push(values(100), gradient_meta(2))
        assert late is not None and late.version == (0, 1) and late.values.tolist() == [-1]
        assert counted(server) == {"updates": 1, "dropped/late_gradients": 1}

    play(scene())


def test_a_worker_that_died_at_the_barrier_counts_once() -> None:
    async def scene() -> None:
        server = shard(mode="sync", quorum=2)
        await server.join(0, values(0), [("w", [1])])
        dead = asyncio.create_task(server.push(values(100), gradient_meta(0)))
        await settle()
        dead.cancel()
        again = asyncio.create_task(server.push(values(2), gradient_meta(0, incarnation=8)))
        await settle()
        assert not again.done(), "two gradients of one worker are not two workers"
        answer = await server.push(values(4), gradient_meta(1))
        assert answer is not None and answer.values.tolist() == [-3]
        assert counted(server) == {"updates": 1, "dropped/superseded_gradients": 1}
        await again

    play(scene())


# -- softsync and bounded staleness -----------------------------------------------------------------


def test_softsync_averages_every_few_and_no_worker_waits() -> None:
    async def scene() -> None:
        server = shard(mode="softsync", quorum=3)
        await server.join(0, values(0), [("w", [1])])
        updates = []
        for number, gradient in enumerate((3, 6, 0, 9, 9, 9)):
            answer = await server.push(values(gradient), gradient_meta(number % 2, number=number + 1))
            assert answer is not None
            updates.append((answer.version.update, answer.values.tolist()))
        assert updates == [(0, [0]), (0, [0]), (1, [-3]), (1, [-3]), (1, [-3]), (2, [-12])]

    play(scene())


def test_gradients_that_are_too_old_are_refused_and_counted() -> None:
    async def scene() -> None:
        server = shard(mode="stale", max_staleness=2)
        await server.join(0, values(0), [("w", [1])])
        for number in range(3):
            await server.push(values(1), gradient_meta(0, number, number=number + 1))
        at_the_bound = await server.push(values(1), gradient_meta(1, at=1))
        assert at_the_bound is not None and at_the_bound.version.update == 4
        beyond = await server.push(values(1), gradient_meta(2, at=1))
        assert beyond is not None and beyond.version.update == 4
        report = server._ctx.take_report()
        assert report.counters == {"updates": 4, "dropped/stale_gradients": 1}
        assert report.stats["lag"].maximum == 2

    play(scene())


def test_fast_workers_wait_for_the_slowest() -> None:
    async def scene() -> None:
        server = shard(mode="stale", max_staleness=2, when_stale="wait")
        for worker in range(2):
            await server.join(worker, values(0), [("w", [1])])
        for number in (1, 2):
            await server.push(values(1), gradient_meta(0, number=number))
        ahead = asyncio.create_task(server.push(values(1), gradient_meta(0, number=3)))
        await settle()
        assert not ahead.done(), "three pushes ahead of a worker without pushes"
        await server.push(values(1), gradient_meta(1, number=1))
        await ahead
        assert counted(server) == {"updates": 4}

    play(scene())


def test_a_restarted_worker_is_not_behind_forever() -> None:
    async def scene() -> None:
        server = shard(mode="stale", max_staleness=1, when_stale="wait")
        for worker in range(2):
            await server.join(worker, values(0), [("w", [1])])
        ahead = [asyncio.create_task(server.push(values(1), gradient_meta(0, number=number))) for number in (1, 2)]
        await settle()
        assert [each.done() for each in ahead] == [True, False]
        _, clock = await server.join(1, values(0), [("w", [1])])
        assert clock == 2
        await asyncio.gather(*ahead)

    play(scene())


# -- crashes ----------------------------------------------------------------------------------------


async def revived(server: ParameterServer, **settings: Any) -> ParameterServer:
    """Build the next incarnation of a shard from its checkpoint."""
    arrays, kept = server.state()
    other = shard(epoch=1, **settings)
    other.restore({name: array.copy() for name, array in arrays.items()}, kept)
    return other


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rmsprop", "adam"])
def test_a_restored_shard_goes_on_to_the_bit(kind: str) -> None:
    async def scene() -> None:
        optimizer = OptimizerConfig(kind=kind, learning_rate=0.1, anneal=True)  # type: ignore[arg-type]
        server = shard(optimizer=optimizer)
        await server.join(0, values(1, 2, 3), [("w", [3])])
        for number in range(1, 4):
            await server.push(values(1, -1, number), gradient_meta(0, number=number))
        other = await revived(server, optimizer=optimizer)
        one = await server.push(values(2, 2, 2), gradient_meta(0, number=4))
        two = await other.push(values(2, 2, 2), gradient_meta(0, number=4))
        assert one is not None and two is not None
        assert one.values.tobytes() == two.values.tobytes()
        assert one.version == (0, 4) and two.version == (1, 4)

    play(scene())


def test_a_gradient_that_is_in_the_checkpoint_is_not_applied_again() -> None:
    """The gradient was applied and saved, but the response was lost: the runtime delivers the call again."""

    async def scene() -> None:
        server = shard()
        await server.join(0, values(0), [("w", [1])])
        await server.push(values(1), gradient_meta(0, number=5))
        other = await revived(server)
        repeat = await other.push(values(1), gradient_meta(0, number=5))
        assert repeat is not None and repeat.values.tolist() == [-1]
        await other.push(values(1), gradient_meta(0, number=6))
        next_incarnation = await other.push(values(1), gradient_meta(0, number=1, incarnation=8))
        assert next_incarnation is not None and next_incarnation.values.tolist() == [-3]
        assert counted(other) == {"updates": 2, "dropped/repeated_gradients": 1}

    play(scene())


def test_a_gradient_after_the_checkpoint_is_applied_to_what_the_checkpoint_held() -> None:
    async def scene() -> None:
        server = shard()
        await server.join(0, values(0), [("w", [1])])
        other = await revived(server)
        await server.push(values(1), gradient_meta(0))
        repeat = await other.push(values(1), gradient_meta(0))
        assert repeat is not None and repeat.values.tolist() == [-1]

    play(scene())


def test_no_worker_waits_at_the_barrier_of_a_restored_shard() -> None:
    async def scene() -> None:
        server = shard(mode="sync", quorum=2)
        await server.join(0, values(0), [("w", [1])])
        other = await revived(server, mode="sync", quorum=2)
        for worker in range(2):  # both are five updates ahead, as of the lost incarnation
            answer = await other.push(values(1), gradient_meta(worker, at=5, number=6))
            assert answer is not None and answer.version == (1, 0)
        both = [
            other.push(values(2), gradient_meta(worker, number=7, computed_at=Version(1, 0))) for worker in range(2)
        ]
        for answer in await asyncio.gather(*both):
            assert answer is not None and answer.values.tolist() == [-2]
        assert counted(other) == {"updates": 1, "dropped/late_gradients": 2}

    play(scene())


def test_a_shard_that_lost_everything_says_so() -> None:
    async def scene() -> None:
        server = await revived(shard())
        assert await server.push(values(1), gradient_meta(0)) is None
        assert counted(server) == {"dropped/homeless_gradients": 1}

    play(scene())
