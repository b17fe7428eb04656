"""Unrolls that a worker collects itself: where they end, their content, and the returns from them."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fakes import YieldingContext

from thespis.algorithms.updates.vtrace_targets import vtrace
from thespis.core.config import NetworkConfig
from thespis.core.context import Identity
from thespis.core.types import Unroll, Version
from thespis.envs.make import describe_env, make_envs
from thespis.envs.toys import Chain
from thespis.experience.inline_collector import InlineCollector
from thespis.networks.build import build_network
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.networks.policies import ActorCritic
from thespis.networks.policy_runner import PolicyRunner


def truncated() -> gym.Env[Any, Any]:
    return Chain(length=5, truncate=True)


def terminated() -> gym.Env[Any, Any]:
    return Chain(length=5)


def collect(env: Any, number: int, envs: int = 1, length: int = 3, lstm: int = 0, **settings: Any) -> list[Unroll]:
    async def scene() -> list[Unroll]:
        made = build_network(ActorCritic, NetworkConfig(hidden=(8,), lstm=lstm), describe_env(env), seed=0)
        runner = PolicyRunner(made, np.random.default_rng(0))
        ctx = YieldingContext(Identity("worker", 0, run_seed=1))
        collector = InlineCollector(ctx, make_envs(env, envs), runner, length, lambda: Version(0, 4), **settings)
        taken = [await collector.next() for _ in range(number)]
        await collector.close()
        steps = sum(int(unroll.valid.sum()) for unroll in taken)
        assert steps <= ctx.take_report().counters["env_steps"] <= steps + length * envs
        for unroll in taken:  # the recorded actions are the actions taken
            with torch.no_grad():
                state = tuple(as_tensor(part) for part in unroll.state)
                output = made.forward(tensor_inputs(unroll.inputs), state)
                logp, _ = made.distribution.evaluate(output.params[:-1], as_tensor(unroll.actions))
            np.testing.assert_allclose(logp.numpy()[unroll.valid], unroll.behaviour_logp[unroll.valid], atol=1e-5)
        return taken

    return asyncio.run(scene())


@pytest.mark.parametrize("lstm", [0, 4])
@pytest.mark.parametrize("env", [terminated, truncated])
def test_a_window_ends_with_the_episode(env: Any, lstm: int) -> None:
    """Episodes of five steps in unrolls of three: three, two, three, two, ... steps, with correct starts."""
    collector = collect(env, 6, lstm=lstm, cut=True)
    assert [len(unroll.rewards) for unroll in collector] == [3, 2] * 3
    for index, unroll in enumerate(collector):
        steps = len(unroll.rewards)
        assert unroll.valid.all(), "the reset is in no unroll"
        assert unroll.inputs.first[0, 0] == (index % 2 == 0) and not unroll.inputs.first[1:-1].any()
        start = 3 * (index % 2)
        assert unroll.rewards[:, 0].tolist() == [*range(start + 1, start + steps + 1)]
        assert unroll.inputs.obs[:-1, 0, 1].tolist() == [*range(start, start + steps)]
        ended = unroll.truncated if env is truncated else unroll.terminated
        assert ended[:, 0].tolist() == [False] * (steps - 1) + [index % 2 == 1]
        assert unroll.inputs.last_reward[0, 0] == (0 if index % 2 == 0 else 3)
        if env is truncated and index % 2:  # the unroll ends with the real last observation, for bootstrapping
            last = unroll.final_obs[0] if len(unroll.final_index) else unroll.inputs.obs[-1, 0]
            assert last[1] == 5


def test_an_episode_that_ends_with_the_window() -> None:
    collector = collect(terminated, 4, length=5, cut=True)
    assert [unroll.rewards[:, 0].tolist() for unroll in collector] == [[1, 2, 3, 4, 5]] * 4
    assert all(unroll.terminated[-1, 0] and unroll.inputs.first[0, 0] for unroll in collector)


@pytest.mark.parametrize("ahead", [False, True])
def test_otherwise_episodes_follow_each_other(ahead: bool) -> None:
    collector = collect(terminated, 8, envs=2, ahead=ahead)
    assert all(unroll.rewards.shape == (3, 2) for unroll in collector)
    rewards = np.concatenate([unroll.rewards for unroll in collector])
    valid = np.concatenate([unroll.valid for unroll in collector])
    earned = rewards[valid[:, 0], 0].tolist()
    assert earned == ([1, 2, 3, 4, 5] * 5)[: len(earned)] and len(earned) >= 20


def returns(rewards: list[float], last: float, ended: list[bool]) -> list[float]:
    """Return the value targets, as the update computes them without importance weights."""
    shape = (len(rewards), 1)
    values = torch.zeros(shape)
    cut = torch.tensor(ended).view(shape)
    after = torch.cat([values[1:], torch.full((1, 1), last)])
    discount = (~cut).float() * 0.9
    found = vtrace(values, after, torch.tensor(rewards).view(shape), discount, cut, torch.zeros(shape))
    return found.targets[:, 0].tolist()


def test_n_step_returns_bootstrap_from_the_last_value() -> None:
    no = [False, False, False]
    assert returns([1.0, 1.0, 1.0], 10.0, no) == pytest.approx([10.0, 10.0, 10.0])
    assert returns([1.0, 1.0, 1.0], 10.0, [False, True, False]) == pytest.approx([1.9, 1.0, 10.0])
    assert returns([1.0, 2.0, 3.0], 2.0, no) == pytest.approx([6.688, 6.32, 4.8])
