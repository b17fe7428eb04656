"""IMPALA: its graph, a few updates under every runtime, and equal policies of learner and actor."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Insert, Pull, YieldingContext, run_until

from thespis import train
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.impala import Config
from thespis.architectures.parts.actors import build_unroll_actor
from thespis.core.config import NetworkConfig, Unrolls
from thespis.core.context import Identity
from thespis.core.user_code import resolve
from thespis.envs.make import describe_env
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.networks.policy_runner import load_weights


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    run = train("impala", on=on, actors=2, envs_per_actor=2, total_steps=2000, eval_episodes=2, eval_every=0.0,
                run_dir=stage.run, quiet=True)  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["env_steps"] >= 2000 and result["updates"] > 10
    assert result["eval_episodes"] == 2 and result["eval_return_mean"] > 0
    assert (result["restarts"], result["dropped"]) == (0, {})
    assert set(result["edges"]) == {
        "learner.queue.sample", "learner.weights.publish", "actor.queue.insert", "actor.weights.pull",
        "evaluator.weights.pull",
    }  # fmt: skip
    assert 0.9 < result["samples_per_insert"] <= 1.0
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("actors", "capacity"), [(1, 1), (4, 2), (8, 3)])
def test_lag_is_bounded_by_what_can_be_under_way(actors: int, capacity: int, stage: Any) -> None:
    """The learner is the bottleneck here, so every queue is full."""
    (stage.path / "costs.yaml").write_text("work:\n  learn: {base: 2e-2}\n")
    run = train("impala", on="simulation", actors=actors, envs_per_actor=1, unroll_length=5, total_steps=3000,
                queue_capacity=capacity, cost_model=stage.path / "costs.yaml", eval_episodes=0,
                run_dir=stage.run, quiet=True)  # fmt: skip
    # Two unrolls per actor, in transit and in progress; the queue; the prefetched batch and the current one.
    assert actors <= run.summary["lag"]["max"] <= 2 * actors + capacity + 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lstm", [0, 8], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "thespis/Memory-v0"])
def test_the_learner_reproduces_what_the_actor_did(env: str, lstm: int) -> None:
    """On a stored unroll, the version that acted gives the same log-probabilities (50 unrolls)."""
    algorithm = VTrace(items=Unrolls(unroll_length=7), network=NetworkConfig(hidden=(16,), lstm=lstm))
    cfg = Config(env=env, envs_per_actor=3, actors=1, algorithm=algorithm)
    made: Any = algorithm.build_network(describe_env(resolve(cfg.env)), seed=1)
    insert, pull = Insert(50), Pull(made)

    async def act() -> None:
        actor = build_unroll_actor(YieldingContext(Identity("actor", 0, run_seed=5)), cfg, insert, pull, ahead=True)
        await run_until(insert.enough, actor)

    asyncio.run(act())
    assert len(insert.unrolls) >= 50
    for unroll in insert.unrolls:
        (version,) = set(unroll.versions.ravel().tolist())  # one version acts in an unroll
        load_weights(made, pull.given[version])
        with torch.no_grad():
            output = made.forward(tensor_inputs(unroll.inputs), tuple(as_tensor(part) for part in unroll.state))
            logp, _ = made.distribution.evaluate(output.params[:-1], as_tensor(unroll.actions))
        np.testing.assert_allclose(logp.numpy()[unroll.valid], unroll.behaviour_logp[unroll.valid], atol=1e-5)
    firsts = sum(int(unroll.inputs.first[1:-1].sum()) for unroll in insert.unrolls)
    assert firsts > 0 or env == "Pendulum-v1", "some episodes must start within unrolls"
