"""A learner with shards: its state, its end without a shard, and the networks that cannot be divided."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import YieldingEdge, play
from sharded import CASES, CHOICE, VECTOR, batch_of, equal, learn, sharded, whole

from thespis.algorithms.vtrace import VTrace
from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError
from thespis.core.learners_config import ParallelConfig
from thespis.envs.spaces import Spaces
from thespis.exchange.shards import ShardLost
from thespis.networks.cuts import why_whole

pytestmark = pytest.mark.usefixtures("one_torch_thread")


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
