"""Samples of a replay: from several shards, with a limit of draws, and with stale keys."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_world import LOOSE, STREAM, World

from thespis.core.config import ReplayConfig
from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.types import Array, TransitionBatch
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.n_step import NStep
from thespis.experience.samplers import Fifo, Prioritised, Uniform
from thespis.experience.sources import ReplaySource
from thespis.experience.step_storage import StepLayout, StepStorage
from thespis.roles import Replay
from thespis.roles.replay import ranks


def table(sampler: Any, capacity: int, limiter: SamplesPerInsert = LOOSE, max_times: int = 0) -> Replay:
    layout = StepLayout.of(World(0, 1, "same step", 1).obs[0], np.empty((), np.int64))
    ctx = FakeContext(Identity("replay", 0, run_seed=0))
    return Replay(ctx, StepStorage(layout, capacity), NStep(1, 0.9), sampler, limiter, lambda r: r, max_times)


def obs(drawn: Any) -> Array:
    assert isinstance(drawn.obs, np.ndarray)
    return drawn.obs


def test_weights_and_priorities_are_right_across_shards() -> None:
    """Shards of different sizes and priorities: item i of S shards has probability P(i) / S."""

    async def scene() -> None:
        replays = [table(Prioritised(400, 0.6, 0.4), 400) for _ in range(2)]
        worlds = [World(seed, 2, "same step", 1, frames=30_000 * seed) for seed in range(2)]
        for replay, world, unrolls, scale in zip(replays, worlds, (4, 16), (1.0, 50.0), strict=True):
            for unroll in world.unrolls(5, unrolls):
                await replay.insert(STREAM, unroll)
            keys = (await replay.sample(400)).keys
            await replay.prioritise(keys, (scale * (1 + keys % 7)).astype(np.float32))
        samples = [FakeEdge(replay.sample, "learner.replay.sample") for replay in replays]
        updates = [FakeEdge(replay.prioritise, "learner.replay.prioritise") for replay in replays]
        ctx = FakeContext(Identity("learner", 0, run_seed=0))
        draws = ReplaySource(ctx, samples, batch=32, batches=2, prioritise=updates)
        batches = [await draws.next(), await draws.next()]
        weights, chances = [], []
        for batch in batches:
            assert isinstance(batch, TransitionBatch) and len(batch.keys) == 32
            assert batch.env_steps_at_sample == 2 * 5 * (4 + 16), "steps of all shards"
            for shard, replay in enumerate(replays):
                mine = slice(16 * shard, 16 * shard + 16)
                leaves = replay.state()[0]["sampler/weights"]
                weights.append(batch.weights[mine])
                chances.append(leaves[batch.keys[mine] % 400] / leaves.sum() / 2)
                assert (obs(batch)[mine, 1] >= 120).all() == bool(shard), "each half is from its own shard"
        expected = np.concatenate(chances) ** -0.4
        np.testing.assert_allclose(np.concatenate(weights), expected / expected.max(), rtol=1e-5)
        before = [replay.state()[0]["sampler/weights"].copy() for replay in replays]
        await draws.done(batches[0], np.full(32, 9.0, np.float32))
        await asyncio.sleep(0)
        for shard, replay in enumerate(replays):
            after = replay.state()[0]["sampler/weights"]
            keys = np.unique(batches[0].keys[16 * shard : 16 * shard + 16])
            np.testing.assert_allclose(after[keys], (9.0 + 1e-6) ** 0.6)
            others = np.setdiff1d(np.arange(400), keys)
            np.testing.assert_array_equal(after[others], before[shard][others])
        await draws.close()

    asyncio.run(scene())


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["uniform", "fifo", "prioritised"]),
    most=st.integers(1, 4),
    items=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_nothing_is_drawn_more_often_than_allowed(kind: str, most: int, items: int, seed: int) -> None:
    world = World(seed, 2, "same step", 1)
    unrolls = world.unrolls(5, 30)
    samplers = {"uniform": Uniform(150), "fifo": Fifo(150), "prioritised": Prioritised(150, 0.6, 0.4)}

    async def scene() -> None:
        replay, seen = table(samplers[kind], 150, max_times=most), dict[int, int]()
        for unroll in unrolls:
            await replay.insert(STREAM, unroll)
            if replay._left >= items:
                for key in (await replay.sample(items)).keys.tolist():
                    seen[key] = seen.get(key, 0) + 1
            assert replay._left == replay._draws_left(np.arange(150))
        assert max(seen.values(), default=0) <= most

    asyncio.run(scene())


def test_a_fifo_that_samples_once_is_a_queue() -> None:
    """A replay as a queue: every item once, in order; a sample waits for items."""
    unrolls = World(0, 1, "same step", 1).unrolls(5, 6)

    async def scene() -> None:
        replay = table(Fifo(60), 60, SamplesPerInsert(1.0, 1, 30.0), max_times=1)
        keys: list[int] = []
        for unroll in unrolls[:2]:
            await replay.insert(STREAM, unroll)
        waiting = asyncio.create_task(replay.sample(12))
        await asyncio.sleep(0)
        assert not waiting.done()
        for unroll in unrolls[2:]:
            await replay.insert(STREAM, unroll)
        keys += (await waiting).keys.tolist() + (await replay.sample(18)).keys.tolist()
        assert keys == sorted(set(keys)) and len(keys) == 30
        assert not replay._sampler.items

    asyncio.run(scene())


def test_inserts_go_on_when_nothing_is_left_to_draw() -> None:
    """Items overwritten before their draws leave too few draws. Inserts may then exceed the band."""
    unrolls = World(0, 1, "same step", 1).unrolls(10, 40)

    async def scene() -> None:
        replay = table(Uniform(25), 25, SamplesPerInsert(1.0, 1, 400.0), max_times=1)
        for unroll in unrolls[:38]:
            await replay.insert(STREAM, unroll)
        await replay.sample(replay._left)
        replay._sampled = 0  # as if the drawn items had been overwritten instead
        inserting = [asyncio.create_task(replay.insert(STREAM, unroll)) for unroll in unrolls[38:]]
        replay._limiter = SamplesPerInsert(1.0, 1, 100.0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in inserting), "with the limiter alone they would wait"
        async with asyncio.timeout(5):
            assert len((await replay.sample(15)).keys) == 15
            await asyncio.gather(*inserting)

    asyncio.run(scene())


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), most=st.integers(0, 3), delays=st.lists(st.integers(0, 12), min_size=5, max_size=20))
def test_a_priority_finds_its_item_or_nothing(seed: int, most: int, delays: list[int]) -> None:
    """Late priorities of removed items change nothing and are counted."""
    world = World(seed, 2, "next step", 1)

    async def scene() -> None:
        replay = table(Prioritised(60, 1.0, 0.4), 60, max_times=most)
        owed: list[tuple[int, Array]] = []
        there: dict[int, bytes] = {}
        for turn, (delay, unroll) in enumerate(zip(delays, world.unrolls(4, len(delays)), strict=True)):
            await replay.insert(STREAM, unroll)
            if replay._may_sample(6):
                drawn = await replay.sample(6)
                owed.append((turn + delay, drawn.keys))
                there.update({int(key): row.tobytes() for key, row in zip(drawn.keys, obs(drawn), strict=True)})
            for due in [debt for debt in owed if debt[0] <= turn]:
                owed.remove(due)
                before = replay.state()[0]["sampler/weights"].copy()
                live = (due[1] >= replay._steps.oldest) & (before[due[1] % 60] > 0.0)
                replay._ctx.take_report()
                await replay.prioritise(due[1], np.full(6, 77.0, np.float32))
                after = replay.state()[0]["sampler/weights"]
                assert set(np.flatnonzero(after != before)) <= set((due[1] % 60)[live])
                assert (after[(due[1] % 60)[live]] == 77.0 + 1e-6).all()
                stale = replay._ctx.take_report().counters.get("dropped/stale_priorities", 0)
                assert stale == np.count_nonzero(~live)
                for key in due[1][live]:
                    row = replay._steps.observations(np.array([key]))
                    assert isinstance(row, np.ndarray) and row[0].tobytes() == there[int(key)]

    asyncio.run(scene())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_ranks_count_what_came_before(slots: list[int]) -> None:
    assert ranks(np.array(slots)).tolist() == [slots[:i].count(slot) for i, slot in enumerate(slots)]


def test_a_shard_gets_its_part_of_the_settings() -> None:
    whole = ReplayConfig(capacity=1000, bytes=90_000, warm_up=100, error=300.0, shards=3)
    assert whole.shard == ReplayConfig(capacity=333, bytes=30_000, warm_up=34, error=100.0)


@pytest.mark.parametrize(
    ("replay", "what"),
    [
        ({"sampler": "fifo"}, "give --replay.max-times-sampled"),
        ({"sampler": "fifo", "max_times_sampled": 8, "priority_exponent": 0.6}, "leave --replay.priority-exponent 0"),
        ({"max_times_sampled": 7}, "8 samples per insert are impossible"),
    ],
)
def test_impossible_replay_settings_are_refused(replay: dict[str, Any], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        ReplayConfig(**replay)
