"""Sequences against whole episodes, and the learner's network against its actor."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_world import LOOSE, STREAM, Truth, World, worth

import thespis.envs  # noqa: F401 - registers the toys
from thespis.algorithms.updates.rescaling import rescale, unscale
from thespis.core.config import QNetworkConfig
from thespis.core.context import Identity
from thespis.core.types import Array, Inputs, PolicyOutput, SequenceBatch, Stream, Unroll, Version
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.envs.make import make_envs
from thespis.experience.samplers import Prioritised
from thespis.experience.sequences import SequenceShape, SequenceWindow
from thespis.experience.step_storage import StepLayout, StepStorage
from thespis.experience.writers import UnrollWriter
from thespis.networks.init import init_network
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.networks.policy_runner import PolicyRunner
from thespis.networks.q import QNetwork
from thespis.roles import Replay

DISCOUNT = 0.9


def mark(obs: Any) -> Array:
    """Return a unique number per observation: `[B, 1]`."""
    flat = obs.reshape(len(obs), -1).astype(np.float32)
    return flat[:, :1] + 251.0 * flat[:, -1:] + 7919.0 * flat.sum(1, keepdims=True)


class Remembering(World):
    """A world whose actors' state is the mark of their last observation. It records where unrolls start."""

    def unrolls(self, length: int, number: int) -> list[Unroll]:
        nothing = np.zeros(self.envs, np.int64)
        inputs = Inputs(self.obs, np.ones(self.envs, np.bool_), nothing, nothing.astype(np.float32))
        state = (np.zeros((self.envs, 1), np.float32),)
        writer, made = UnrollWriter(length, inputs, state), []
        self.began: set[bytes] = set()
        time = 0
        while len(made) < number:
            if time % length == 0:
                self.began |= {row.tobytes() for row in self.obs}
            actions = self.rng.integers(0, 5, self.envs)
            acted = PolicyOutput(
                actions, np.zeros(self.envs, np.float32), (mark(inputs.obs),), worth(inputs.obs, actions)
            )  # fmt: skip
            step = self.step(actions)
            inputs = next_inputs(step, actions)
            unroll = writer.write(acted, Version(0, len(made)), step, inputs)
            time += 1
            if unroll is not None:
                made.append(unroll)
        return made


@dataclass
class Expected:
    """A recorded sequence: the steps of its window, the step before, and the number of burn-in steps."""

    steps: list[Truth]
    before: Truth | None
    burn_in: int

    def target(self, t: int, n: int) -> tuple[float, float, Array]:
        window = self.steps[t : t + n]
        reward = sum(DISCOUNT**k * part.reward for k, part in enumerate(window))
        return reward, 0.0 if window[-1].terminated else DISCOUNT ** len(window), window[-1].next_obs


def expect(world: Remembering, shape: SequenceShape, values: bool) -> dict[bytes, Expected]:
    """Return all complete sequences by their first observation."""
    expected = {}
    for episode in world.episodes:
        ended = bool(episode) and (episode[-1].terminated or episode[-1].truncated)
        for start, step in enumerate(episode):
            if start and step.obs.tobytes() not in world.began:
                continue
            burn_in = shape.burn_in if start else 0
            end = start + burn_in + shape.length
            window = episode[start:end]
            closed = len(episode) <= end and ended
            if not closed and len(episode) < end + values:
                continue
            if start == 0 or len(window) > shape.length - shape.period:
                expected[step.obs.tobytes()] = Expected(window, episode[start - 1] if start else None, burn_in)
    return expected


def table(world: World, shape: SequenceShape, capacity: int, values: bool = False, stored: bool = True) -> Replay:
    steps = StepStorage(StepLayout.of(world.obs[0], np.empty((), np.int64), values), capacity)
    window = SequenceWindow(shape, capacity, lambda rewards: rewards, stored)
    ctx = FakeContext(Identity("replay", 0, run_seed=0))
    return Replay(ctx, steps, window, Prioritised(capacity, 1.0, 0.4), LOOSE, lambda rewards: rewards)


def check(
    drawn: SequenceBatch, expected: dict[bytes, Expected], shape: SequenceShape, stored: bool = True
) -> set[bytes]:
    obs: Any = drawn.inputs.obs
    seen = set()
    for i in range(len(drawn.keys)):
        begins = 0 if drawn.valid[0, i] else shape.burn_in
        key = obs[begins, i].tobytes()
        seen.add(key)
        check_one(drawn, i, begins, expected[key], shape, stored)
    return seen


def check_one(drawn: SequenceBatch, i: int, begins: int, truth: Expected, shape: SequenceShape, stored: bool) -> None:
    seen, steps = drawn.inputs, truth.steps
    obs: Any = seen.obs
    opens = truth.before is None
    taken = np.arange(len(drawn.valid))
    np.testing.assert_array_equal(drawn.valid[:, i], (taken >= begins) & (taken < begins + len(steps)))
    assert opens == bool(seen.first[begins, i]) and np.count_nonzero(seen.first[:, i]) == opens
    before = 0.0 if opens or not stored else mark(truth.before.obs[None])[0, 0]  # type: ignore[union-attr]
    assert opens or drawn.state[0][i, 0] == before
    led = [truth.before, *steps]
    for t, step in enumerate(steps):
        np.testing.assert_array_equal(obs[begins + t, i], step.obs)
        assert drawn.actions[begins + t, i] == step.action
        last = led[t]
        assert seen.last_action[begins + t, i] == (last.action if last else 0)
        assert seen.last_reward[begins + t, i] == (last.reward if last else 0.0)
    for t in range(truth.burn_in, len(steps)):
        at = begins + t - shape.burn_in
        reward, discount, following = truth.target(t, shape.n)
        assert drawn.rewards[at, i] == pytest.approx(reward, abs=1e-4)
        assert drawn.discounts[at, i] == pytest.approx(discount, abs=1e-6)
        if discount:
            np.testing.assert_array_equal(obs[shape.burn_in + drawn.ahead[at, i], i], following)


SHAPES = st.builds(
    lambda period, burn_in, more, n: SequenceShape(period + burn_in + more, burn_in, period, n, DISCOUNT, 0.9),
    period=st.integers(1, 5), burn_in=st.integers(0, 3), more=st.integers(0, 3), n=st.integers(1, 4),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32), envs=st.integers(1, 3), mode=st.sampled_from(["same step", "next step"]),
    stack=st.sampled_from([1, 1, 3]), shape=SHAPES, values=st.booleans(), stored=st.booleans(),
)  # fmt: skip
def test_sequences_are_those_of_whole_episodes(
    seed: int, envs: int, mode: str, stack: int, shape: SequenceShape, values: bool, stored: bool
) -> None:
    world = Remembering(seed, envs, mode, stack)
    unrolls = world.unrolls(shape.period, 60 // shape.period)
    expected = expect(world, shape, values)
    learned = {step.obs.tobytes() for truth in expected.values() for step in truth.steps[truth.burn_in :]}
    for episode in world.episodes:
        if episode and (episode[-1].terminated or episode[-1].truncated):
            assert all(step.obs.tobytes() in learned for step in episode), "every step of a whole episode is trained"

    async def scene() -> None:
        replay = table(world, shape, 2000, values, stored)
        for unroll in unrolls:
            inserted = await replay.insert(STREAM, unroll)
        assert inserted == len(expected), "each sequence counts once"
        if expected:
            seen: set[bytes] = set()
            for _ in range(8):
                drawn: Any = await replay.sample(len(expected))
                seen |= check(drawn, expected, shape, stored)
            if not values:
                assert len(seen) > 0.9 * len(expected)

    asyncio.run(scene())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(["same step", "next step"]), shape=SHAPES)
def test_states_live_as_long_as_their_rows(seed: int, mode: str, shape: SequenceShape) -> None:
    """Two actors of different speed share a small ring, which is saved and restored in between."""
    worlds = [Remembering(seed, 2, mode, 1), Remembering(seed + 1, 1, mode, 1, frames=30_000)]
    unrolls = [world.unrolls(shape.period, number) for world, number in zip(worlds, (60, 6), strict=True)]
    expected = expect(worlds[0], shape, False) | expect(worlds[1], shape, False)

    async def scene() -> None:
        replay = table(worlds[0], shape, 160)
        for turn, unroll in enumerate(unrolls[0]):
            await replay.insert(STREAM, unroll)
            if turn % 10 == 9:
                await replay.insert(Stream(("actor", 1), 1), unrolls[1].pop(0))
            if turn % 10 == 4 and replay._sampler.items:
                drawn: Any = await replay.sample(30)
                check(drawn, expected, shape)
                other = table(worlds[0], shape, 160)
                other.restore(*replay.state())
                drawn = await other.sample(30)
                check(drawn, expected, shape)

    asyncio.run(scene())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(["same step", "next step"]), shape=SHAPES)
def test_first_priorities_are_the_errors_the_actor_saw(seed: int, mode: str, shape: SequenceShape) -> None:
    world = Remembering(seed, 2, mode, 1)
    unrolls = world.unrolls(shape.period, 60 // shape.period)
    expected = expect(world, shape, True)

    async def scene() -> None:
        replay = table(world, shape, 2000, values=True)
        for unroll in unrolls:
            await replay.insert(STREAM, unroll)
        arrays, _ = replay.state()
        for slot in np.flatnonzero(arrays["sampler/weights"]):
            truth = expected[arrays["steps/frames/"][slot].tobytes()]
            if any(step.truncated for step in truth.steps):
                continue  # the policy need not have evaluated the last observation
            errors = []
            for t in range(truth.burn_in, len(truth.steps)):
                step = truth.steps[t]
                reward, discount, following = truth.target(t, shape.n)
                best = worth(following[None], np.zeros(1))[0, 1]
                y = rescale(np.array(reward + (discount * unscale(best) if discount else 0.0)))
                errors.append(abs(float(y) - worth(step.obs[None], np.array([step.action]))[0, 0]))
            priority = 0.9 * max(errors) + 0.1 * np.mean(errors)
            assert arrays["sampler/weights"][slot] == pytest.approx(priority + 1e-6, rel=1e-3)

    asyncio.run(scene())


@pytest.mark.parametrize("feedback", [True, False])
def test_the_learner_computes_what_the_actor_did(feedback: bool) -> None:
    """State parity: with the actor's weights and the stored state, Q of every step equals the stored Q."""
    envs = make_envs("thespis/Recall-v0", 4)
    cfg = QNetworkConfig(hidden=(16,), lstm=16, dueling=True, feedback=feedback)
    network = init_network(lambda: QNetwork(envs.observation_space, envs.action_space, cfg), 0)
    runner = PolicyRunner(network, np.random.default_rng(0))
    runner.explore(0.3)
    shape = SequenceShape(12, 4, 6, 5, 0.99, 0.9)
    inputs, state = first_inputs(envs.reset(0), envs), runner.initial_state(4)
    writer = UnrollWriter(shape.period, inputs, state)
    steps = StepStorage(StepLayout.of(inputs.obs[0], np.empty((), np.int64), values=True), 3000)  # type: ignore[index]
    window = SequenceWindow(shape, 3000, lambda rewards: rewards)
    starts = []
    heads = None
    for _ in range(180):
        acted = runner.act(inputs, state)
        step = envs.step(acted.actions)
        inputs, state = next_inputs(step, acted.actions), acted.state
        unroll = writer.write(acted, Version(0, 0), step, inputs)
        if unroll is not None:
            numbers = steps.write(unroll, heads, unroll.rewards)
            starts.append(window.opened(steps, unroll, numbers))
            heads = numbers[-1]
    envs.close()
    keys = window.sort(steps, np.concatenate(starts))[0][:50]
    assert len(keys) == 50
    batch = window.batch(steps, keys, np.ones(50, np.float32), 0)
    assert batch.inputs.first.any() and not batch.inputs.first.any(0).all(), (
        "some sequences start an episode, some do not"
    )
    with torch.inference_mode():
        q = network.forward(tensor_inputs(batch.inputs), tuple(as_tensor(part) for part in batch.state)).params
    rows = window._walk(steps, keys).rows[:-1]
    taken = q[:-1].gather(-1, as_tensor(batch.actions).unsqueeze(-1)).squeeze(-1).numpy()
    stored = steps.values[rows % steps.capacity]
    np.testing.assert_allclose(taken[batch.valid], stored[batch.valid][:, 0], atol=1e-5)
    np.testing.assert_allclose(q[:-1].amax(-1).numpy()[batch.valid], stored[batch.valid][:, 1], atol=1e-5)
