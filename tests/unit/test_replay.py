"""The replay against items computed from whole episodes, and its behaviour at the end of rows, streams and runs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_world import LOOSE, STREAM, World, worth

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.program import Edge
from thespis.core.types import Array, Stream, TransitionBatch, map_tree
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.n_step import NStep
from thespis.experience.samplers import Prioritised, Uniform
from thespis.experience.sources import StreamInsert
from thespis.experience.step_storage import StepLayout, StepStorage
from thespis.roles import Replay


def table(
    world: World,
    n: int,
    capacity: int,
    limiter: SamplesPerInsert = LOOSE,
    alpha: float = 0.0,
    values: bool = False,
) -> tuple[Replay, FakeContext]:
    ctx = FakeContext(Identity("replay", 0, run_seed=0))
    steps = StepStorage(StepLayout.of(world.obs[0], np.empty((), np.int64), values), capacity)
    sampler = Prioritised(capacity, alpha, 0.4) if alpha else Uniform(capacity)
    return Replay(ctx, steps, NStep(n, 0.9), sampler, limiter, lambda rewards: rewards), ctx


def check(drawn: TransitionBatch, expected: dict[bytes, tuple[int, float, float, Array]]) -> set[bytes]:
    obs, next_obs = drawn.obs, drawn.next_obs
    assert isinstance(obs, np.ndarray) and isinstance(next_obs, np.ndarray)
    for i in range(len(drawn.keys)):
        action, reward, worth, following = expected[obs[i].tobytes()]
        assert drawn.actions[i] == action
        assert drawn.rewards[i] == pytest.approx(reward, abs=1e-4)
        assert drawn.discounts[i] == pytest.approx(worth, abs=1e-6)
        if worth:
            np.testing.assert_array_equal(next_obs[i], following)
    return {row.tobytes() for row in obs}


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    envs=st.integers(1, 3),
    mode=st.sampled_from(["same step", "next step"]),
    stack=st.sampled_from([1, 1, 3]),
    n=st.integers(1, 5),
    length=st.integers(1, 6),
)
def test_transitions_are_those_of_whole_episodes(
    seed: int, envs: int, mode: str, stack: int, n: int, length: int
) -> None:
    world = World(seed, envs, mode, stack)
    unrolls = world.unrolls(length, 12)
    expected = world.expect(n, 0.9)

    async def scene() -> None:
        replay, ctx = table(world, n, 2000)
        for unroll in unrolls:
            await replay.insert(STREAM, unroll)
        assert ctx.take_report().counters.get("replay/inserted", 0) == len(expected), "each window counts once"
        if expected:
            seen = check(await replay.sample(6 * len(expected)), expected)
            assert len(seen) > 0.9 * len(expected)

    asyncio.run(scene())


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    mode=st.sampled_from(["same step", "next step"]),
    stack=st.sampled_from([1, 3]),
    n=st.integers(1, 4),
)
def test_what_is_overwritten_is_never_drawn(seed: int, mode: str, stack: int, n: int) -> None:
    """Two actors of different speed share a small ring."""
    worlds = [World(seed, 2, mode, stack), World(seed + 1, 1, mode, stack, frames=30_000)]
    unrolls = [worlds[0].unrolls(4, 40), worlds[1].unrolls(4, 4)]
    expected = worlds[0].expect(n, 0.9) | worlds[1].expect(n, 0.9)

    async def scene() -> None:
        replay, _ = table(worlds[0], n, 160)
        for turn, unroll in enumerate(unrolls[0]):
            await replay.insert(STREAM, unroll)
            if turn % 10 == 9:
                await replay.insert(Stream(("actor", 1), 1), unrolls[1].pop(0))
            if turn % 5 == 4:
                check(await replay.sample(40), expected)

    asyncio.run(scene())


def test_the_paper_s_n_step_records() -> None:
    """Rewards 1, 2, 3, 4 and a termination: R = 5.23, 7.94, 6.6, 4 for three steps and a discount of 0.9."""
    for terminated in (True, False):
        world = World(0, 1, "next step", 1)
        (unroll,) = world.unrolls(6, 1)
        unroll.rewards[:4, 0] = [1, 2, 3, 4]
        unroll.terminated[:] = unroll.truncated[:] = False
        unroll.inputs.first[1:] = False
        unroll.valid[:] = True
        (unroll.terminated if terminated else unroll.truncated)[3] = True
        unroll.valid[4], unroll.inputs.first[5] = False, True
        replay, _ = table(world, 3, 100)
        asyncio.run(replay.insert(STREAM, unroll))
        drawn = asyncio.run(replay.sample(100))
        worth = {round(float(r), 2): round(float(d), 3) for r, d in zip(drawn.rewards, drawn.discounts, strict=True)}
        rest = [0.0, 0.0, 0.0] if terminated else [0.729, 0.81, 0.9]
        assert worth == {5.23: 0.729, 7.94: rest[0], 6.6: rest[1], 4.0: rest[2]}


def test_a_window_never_spans_two_incarnations() -> None:
    world = World(3, 2, "next step", 1)
    unrolls = world.unrolls(5, 8)
    expected = world.expect(3, 0.9)

    async def scene() -> None:
        replay, ctx = table(world, 3, 500)
        for number, unroll in enumerate(unrolls):
            await replay.insert(Stream(("actor", 0), number // 2), unroll)
        result = ctx.take_report().counters
        assert result["dropped/open_windows"] > 0
        assert result["replay/inserted"] < len(expected)
        check(await replay.sample(500), expected)

    asyncio.run(scene())


def test_an_insert_returns_the_items_of_all_actors() -> None:
    world = World(0, 2, "same step", 1)
    unrolls = world.unrolls(5, 6)

    async def scene() -> None:
        replay, _ = table(world, 1, 500)
        actors = [
            StreamInsert(FakeContext(Identity("actor", i, run_seed=0)), FakeEdge(replay.insert)) for i in range(2)
        ]
        for turn, unroll in enumerate(unrolls):
            await actors[turn % 2](unroll)
        assert [actor.inserted for actor in actors] == [50, 60]

    asyncio.run(scene())


def test_stale_priorities_are_ignored_and_counted() -> None:
    world = World(0, 1, "same step", 1)
    unrolls = world.unrolls(10, 12)

    async def scene() -> None:
        replay, ctx = table(world, 1, 40, alpha=1.0)
        for unroll in unrolls[:3]:
            await replay.insert(STREAM, unroll)
        old = await replay.sample(8)
        for unroll in unrolls[3:]:
            await replay.insert(STREAM, unroll)
        before = replay.state()[0]["sampler/weights"].copy()
        await replay.prioritise(old.keys, np.full(8, 1e6, np.float32))
        np.testing.assert_array_equal(replay.state()[0]["sampler/weights"], before)
        assert ctx.take_report().counters["dropped/stale_priorities"] == 8
        new = await replay.sample(8)
        await replay.prioritise(new.keys[:1], np.array([1e6], np.float32))
        again = await replay.sample(200)
        assert np.mean(again.keys == new.keys[0]) > 0.99

    asyncio.run(scene())


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(["same step", "next step"]), n=st.integers(1, 4))
def test_new_transitions_get_the_errors_that_their_actors_saw(seed: int, mode: str, n: int) -> None:
    world = World(seed, 2, mode, 1)
    unrolls = world.unrolls(5, 12)
    expected = world.expect(n, 0.9)
    acted_on = {episode[t].obs.tobytes() for episode in world.episodes for t in range(len(episode))}

    async def scene() -> None:
        replay, _ = table(world, n, 500, alpha=1.0, values=True)
        for unroll in unrolls:
            await replay.insert(STREAM, unroll)
        drawn = await replay.sample(100)
        check(drawn, expected)
        obs, next_obs = np.asarray(drawn.obs), np.asarray(drawn.next_obs)
        future = drawn.discounts * worth(next_obs, drawn.actions)[:, 1]
        errors = np.abs(drawn.rewards + future - worth(obs, drawn.actions)[:, 0])
        # The policy did not act at a truncation, or has not yet: such a window gets the highest priority.
        known = np.array([row.tobytes() in acted_on for row in next_obs]) | (drawn.discounts == 0.0)
        weights = replay.state()[0]["sampler/weights"][drawn.keys]
        assert known.any()
        np.testing.assert_allclose(weights[known], errors[known] + 1e-6, rtol=1e-4, atol=1e-5)
        assert mode == "next step" or (weights[~known] >= 1.0).all()

    asyncio.run(scene())


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_table_comes_back_from_its_state(stack: int, alpha: float) -> None:
    world = World(1, 2, "same step", stack)
    unrolls = world.unrolls(5, 40)
    expected = world.expect(2, 0.9)

    async def scene() -> None:
        replay, _ = table(world, 2, 300, alpha=alpha)
        other, _ = table(world, 2, 300, alpha=alpha)
        for unroll in unrolls[:35]:
            await replay.insert(STREAM, unroll)
        drawn = await replay.sample(50)
        await replay.prioritise(drawn.keys, np.linspace(0.0, 2.0, 50, dtype=np.float32))
        arrays, values = replay.state()
        other.restore({name: array.copy() for name, array in arrays.items()}, values)
        again, values_again = other.state()
        assert values_again == values
        for name, array in arrays.items():
            np.testing.assert_array_equal(again[name], array)
        for unroll in unrolls[35:]:
            await other.insert(Stream(("actor", 0), 2), unroll)
        check(await other.sample(400), expected)

    asyncio.run(scene())


def test_frames_of_a_stack_are_stored_once() -> None:
    obs = np.zeros((4, 84, 84), np.uint8)
    layout = StepLayout.of(obs, np.empty((), np.int64))
    assert layout.stack == 4
    assert 84 * 84 <= layout.row_bytes < 84 * 84 + 64
    assert StepLayout.of(np.zeros((84, 84, 3), np.uint8), np.empty((), np.int64)).stack == 1


def test_samples_wait_for_the_warm_up_and_inserts_for_samples() -> None:
    world = World(0, 1, "same step", 1)
    unrolls = world.unrolls(10, 12)

    async def scene() -> None:
        replay, ctx = table(world, 1, 200, SamplesPerInsert(2.0, 20, 40.0))
        sample = asyncio.create_task(replay.sample(30))
        await replay.insert(STREAM, unrolls[0])
        await asyncio.sleep(0)
        assert not sample.done()
        for unroll in unrolls[1:4]:
            await replay.insert(STREAM, unroll)
        assert len((await sample).keys) == 30
        blocked = [asyncio.create_task(replay.insert(STREAM, unroll)) for unroll in unrolls[4:8]]
        for _ in range(20):
            await asyncio.sleep(0)
        assert [task.done() for task in blocked] == [True, False, False, False]
        for _ in range(3):
            await replay.sample(40)
        await asyncio.gather(*blocked)
        result = ctx.take_report().counters
        assert abs(2.0 * (result["replay/inserted"] - 20) - result["replay/sampled"]) <= 40.0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("capacity", "limiter", "what"),
    [
        (100, SamplesPerInsert(1.0, 200, 500.0), "warm-up 200 exceeds capacity 100"),
        (100, SamplesPerInsert(1.0, 50, 500.0), "overflow capacity 100"),
        (1000, SamplesPerInsert(1.0, 50, 10.0), "both could wait forever"),
    ],
)
def test_settings_that_would_wait_forever_are_refused(capacity: int, limiter: Any, what: str) -> None:
    incoming = [Edge("replay", 0, "insert", {"items": 60}), Edge("replay", 0, "sample", {"items": 64})]
    with pytest.raises(ThespisError, match=what):
        Replay.validate("replay", {"capacity": capacity, "limiter": limiter}, incoming)
    with pytest.raises(ThespisError, match="no actor inserts"):
        Replay.validate("replay", {"capacity": capacity, "limiter": limiter}, incoming[1:])


@pytest.mark.parametrize("mode", ["same step", "next step"])
def test_dict_observations_keep_their_parts_together(mode: str) -> None:
    world = World(5, 2, mode, 1)
    unrolls = world.unrolls(6, 10)

    def split(obs: Any) -> dict[str, Array]:
        return {"one": obs, "two": 2 * obs[..., :1]}

    ctx = FakeContext(Identity("replay", 0, run_seed=0))
    layout = StepLayout.of(map_tree(lambda leaf: leaf[0], split(world.obs)), np.empty((), np.int64))
    replay = Replay(ctx, StepStorage(layout, 90), NStep(2, 0.9), Uniform(90), LOOSE, lambda rewards: rewards)

    async def scene() -> None:
        for unroll in unrolls:
            unroll.inputs.obs, unroll.final_obs = split(unroll.inputs.obs), split(unroll.final_obs)
            await replay.insert(STREAM, unroll)
        drawn = await replay.sample(200)
        assert isinstance(drawn.obs, dict) and isinstance(drawn.next_obs, dict)
        whole = dataclasses.replace(drawn, obs=drawn.obs["one"], next_obs=drawn.next_obs["one"])
        check(whole, world.expect(2, 0.9))
        for obs in (drawn.obs, drawn.next_obs):
            np.testing.assert_array_equal(obs["two"], 2 * obs["one"][:, :1])

    asyncio.run(scene())
