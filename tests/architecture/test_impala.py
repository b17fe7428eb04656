"""IMPALA as a whole: its graph, a few updates under every runtime, and that learner and actor see the same policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thespis import train
from thespis.architectures.impala import Config, build_actor
from thespis.architectures.parts import network
from thespis.cli.main import main
from thespis.config import NetworkConfig, resolve
from thespis.envs.make import describe
from thespis.networks.acting import export_weights, load_weights
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.runtime.context import Context, Identity
from thespis.types import Unroll, Version, Versioned

HERE = Path(__file__).parent


@pytest.mark.parametrize(("form", "file"), [("text", "impala.txt"), ("mermaid", "impala.mermaid")])
def test_the_graph_is_the_stored_one(form: str, file: str, capsys: Any) -> None:
    assert main(["show", "impala", "--actors", "2", "--format", form]) == 0
    assert capsys.readouterr().out == (HERE / file).read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    run = train("impala", on=on, actors=2, envs_per_actor=2, total_steps=2000, eval_episodes=2, eval_every=0.0,
                run_dir=stage.run, quiet=True)  # fmt: skip
    told = run.summary
    assert told["exit_reason"] == "total_steps"
    assert told["env_steps"] >= 2000 and told["updates"] > 10
    assert told["eval_episodes"] == 2 and told["eval_return_mean"] > 0
    assert (told["restarts"], told["dropped"]) == (0, {})
    assert set(told["edges"]) == {
        "learner.queue.sample", "learner.weights.publish", "actor.queue.insert", "actor.weights.pull",
        "evaluator.weights.pull",
    }  # fmt: skip
    assert 0.9 < told["samples_per_insert"] <= 1.0
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("actors", "capacity"), [(1, 1), (4, 2), (8, 3)])
def test_lag_is_bounded_by_what_can_be_under_way(actors: int, capacity: int, stage: Any) -> None:
    """The learner is the bottleneck here, so everything that can wait does."""
    (stage.path / "costs.yaml").write_text("work:\n  learn: {base: 2e-2}\n")
    run = train("impala", on="simulation", actors=actors, envs_per_actor=1, unroll_length=5, total_steps=3000,
                queue_capacity=capacity, cost_model=stage.path / "costs.yaml", eval_episodes=0,
                run_dir=stage.run, quiet=True)  # fmt: skip
    # Per actor one unroll on its way and one being made; the queue; the batch asked for ahead and the one in use.
    assert actors <= run.summary["lag"]["max"] <= 2 * actors + capacity + 2


class FakeContext(Context):
    """Time stands still."""

    def now(self) -> float:
        return 0.0

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0)


class Insert:
    """Collects unrolls, and says when there are enough."""

    name = "actor.queue.insert"

    def __init__(self, wanted: int) -> None:
        self.unrolls: list[Unroll] = []
        self.wanted = wanted
        self.enough = asyncio.Event()

    async def __call__(self, unroll: Unroll) -> None:
        self.unrolls.append(unroll)
        await asyncio.sleep(0)
        if len(self.unrolls) >= self.wanted:
            self.enough.set()


class Pull:
    """New weights at every call, each as different as an update would not make them."""

    name = "actor.weights.pull"

    def __init__(self, made: Any) -> None:
        self._network = made
        self._rng = np.random.default_rng(0)
        self.given: dict[int, dict[str, Any]] = {}

    async def __call__(self, newer_than: Version | None) -> Versioned:
        version = Version(2, len(self.given))
        weights = export_weights(self._network)
        weights = {
            name: value + self._rng.normal(scale=0.3, size=value.shape).astype(value.dtype)
            if value.dtype == np.float32 and "normal" not in name else value
            for name, value in weights.items()
        }  # fmt: skip
        self.given[version.packed()] = weights
        return Versioned(version, weights)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lstm", [0, 8], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "thespis/Memory-v0"])
def test_the_learner_reproduces_what_the_actor_did(env: str, lstm: int) -> None:
    """With the version that acted, on the stored unroll, the log-probabilities come out the same (50 unrolls)."""
    cfg = Config(
        env=env, envs_per_actor=3, unroll_length=7, network=NetworkConfig(hidden=(16,), lstm=lstm), actors=1
    )  # fmt: skip
    made: Any = network(cfg.network, describe(resolve(cfg.env)), seed=1)
    insert, pull = Insert(50), Pull(made)

    async def act() -> None:
        actor = build_actor(FakeContext(Identity("actor", 0, run_seed=5)), cfg, insert, pull)
        run = asyncio.create_task(actor.run())
        ends = asyncio.create_task(insert.enough.wait())
        await asyncio.wait({run, ends}, return_when=asyncio.FIRST_COMPLETED)
        for task in (run, ends):
            task.cancel()
        ended, _ = await asyncio.gather(run, ends, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        await actor.close()

    asyncio.run(act())
    assert len(insert.unrolls) >= 50
    for unroll in insert.unrolls:
        (version,) = set(unroll.versions.ravel().tolist())  # an unroll is made by one version
        load_weights(made, pull.given[version])
        with torch.no_grad():
            output = made.forward(tensor_inputs(unroll.inputs), tuple(as_tensor(part) for part in unroll.state))
            logp, _ = made.distribution.evaluate(output.params[:-1], as_tensor(unroll.actions))
        np.testing.assert_allclose(logp.numpy()[unroll.valid], unroll.behaviour_logp[unroll.valid], atol=1e-5)
    firsts = sum(int(unroll.inputs.first[1:-1].sum()) for unroll in insert.unrolls)
    assert firsts > 0 or env == "Pendulum-v1", "episodes must open inside unrolls for this to mean much"
