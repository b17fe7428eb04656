"""Ape-X DPG: graph, noise, a few updates, initial priorities, asymmetric bounds, resume, evaluation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import newest
from fakes import StreamInsert, YieldingContext, run_until
from safetensors.numpy import load_file

from thespis import train
from thespis.algorithms.dpg import DPG, NoiseLadder
from thespis.algorithms.updates.dpg import DPGUpdate
from thespis.architectures.apex import Config
from thespis.architectures.parts.actors import build_replay_actor
from thespis.architectures.parts.replay import build_replay
from thespis.cli.main import main
from thespis.core.config import ReplayConfig, RewardConfig
from thespis.core.config_io import with_settings
from thespis.core.context import Identity
from thespis.core.types import Stream, TransitionBatch, Unroll, Version, VersionedWeights
from thespis.envs.make import describe_env
from thespis.experience.limiters import SamplesPerInsert
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.dpg import DPGNetwork
from thespis.networks.policies import ActorCritic
from thespis.networks.policy_runner import export_weights
from thespis.training.launch import launch
from thespis.training.registry import defaults

SMALL: dict[str, Any] = {
    "env": "Pendulum-v1", "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "batch": 16, "batches_per_draw": 2,
    "total_steps": 1000, "eval_episodes": 2, "eval_every": 0.0, "network": {"hidden": [16], "critic_hidden": [16, 16]},
    "replay": {"warm_up": 200, "samples_per_insert": 4.0, "capacity": 4000},
}  # fmt: skip


class Lopsided(gym.Env[Any, Any]):
    """Takes two actions with asymmetric bounds. Episodes end at random, by a termination or a time limit."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        ends = self.np_random.random(2) < 0.1
        return self._see(), float(action @ [1.0, -0.1]), bool(ends[0]), bool(ends[1]), {}

    def _see(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def test_the_ladder_falls_from_the_most_noise_to_the_least() -> None:
    ladder = NoiseLadder()
    whole = np.concatenate([ladder.amount(0, range(2 * actor, 2 * actor + 2), 4) for actor in range(2)])
    np.testing.assert_allclose(whole, [0.4, 0.2, 0.1, 0.05], rtol=1e-6)
    np.testing.assert_allclose(NoiseLadder(noise=0.3, least_noise=0.3).amount(0, range(28, 32), 36), [0.3] * 4)
    assert ladder.amount(0, range(1), 1).tolist() == [0.4]
    assert DPG().exploration == ladder


@pytest.mark.timeout(60)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    result = train("apex-dpg", on=on, run_dir=stage.run, quiet=True, **{**SMALL, "eval_episodes": 0}).summary
    assert result["exit_reason"] == "total_steps" and result["updates"] > 100
    assert (result["restarts"], result["dropped"]) == (0, {})
    saved = load_file(newest(stage.run) / "replay-0.safetensors")
    inserted = json.loads((newest(stage.run) / "replay-0.json").read_text())["inserted"]
    priorities = saved["sampler/weights"]
    assert np.count_nonzero(priorities) == inserted
    assert len(np.unique(priorities)) > 0.9 * inserted, "every transition has its own initial priority"
    assert np.abs(saved["steps/actions"]).max() <= 1.0


@pytest.mark.timeout(60)
def test_a_run_is_resumed_and_its_policy_played(stage: Any, capsys: Any) -> None:
    settings = {**SMALL, "on": "simulation"}
    result = train("apex-dpg", run_dir=stage.run, quiet=True, **settings).summary
    assert result["eval_episodes"] == 2 and -2000 < result["eval_return_mean"] < 0
    old, saved = newest(stage.run), load_file(newest(stage.run) / "replay-0.safetensors")
    targets = load_file(old / "learner-0.safetensors")
    assert {"update/target/policy.weight", "update/target/critic.output.weight"} <= set(targets)
    run = launch("apex-dpg", defaults("apex-dpg", None, {**settings, "total_steps": 1200, "keep": 5}),
                 resume=stage.run, quiet=True)  # fmt: skip
    assert newest(stage.run) != old
    after = load_file(newest(stage.run) / "replay-0.safetensors")
    rows = len(saved["steps/rewards"]) - 2 * 2  # the policy has not acted on the last observations
    np.testing.assert_array_equal(after["steps/actions"][:rows], saved["steps/actions"][:rows])
    assert json.loads((newest(stage.run) / "learner-0.json").read_text())["updates"] > result["updates"]

    assert main(["eval", str(stage.run), "--episodes", "1"]) == 0
    assert "mean return -" in capsys.readouterr().out
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    assert run.policy.act(obs).tobytes() == run.policy.act(obs).tobytes()


class Fixed:
    """A pull edge that returns the same weights at every call."""

    name = "actor.weights.pull"

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    async def __call__(self, newer_than: Version | None) -> VersionedWeights | None:
        return None if newer_than else VersionedWeights(Version(1, 0), self._weights)


def collect(cfg: Config, weights: dict[str, Any], number: int) -> list[Unroll]:
    """Return the unrolls that an actor with these weights sends."""
    insert = StreamInsert(number)

    async def act() -> None:
        actor = build_replay_actor(YieldingContext(Identity("actor", 0, run_seed=5)), cfg, insert, Fixed(weights))
        await run_until(insert.enough, actor)

    asyncio.run(act())
    return insert.unrolls


@pytest.mark.timeout(60)
@pytest.mark.parametrize("env", [Lopsided, "Pendulum-v1"])
def test_the_actor_s_priorities_are_those_the_learner_would_compute(env: Any) -> None:
    some = {
        "unroll_length": 7, "n_step": 3, "discount": 0.9,
        "replay": ReplayConfig(warm_up=1, capacity=2000, priority_exponent=1.0, actor_priorities=True),
        "network": DPGNetworkConfig(hidden=(16,), critic_hidden=(16, 16)),
        "reward": RewardConfig(kind="scale", scale=0.1),
    }  # fmt: skip
    cfg = with_settings(Config(algorithm=DPG(), env=env, actors=1, envs_per_actor=3), some)
    made = cfg.algorithm.build_network(describe_env(env), seed=1)
    assert isinstance(made, DPGNetwork)
    weights = {
        name: value * 100 if name in ("policy.weight", "critic.output.weight") else value
        for name, value in export_weights(made).items()
    }
    unrolls = collect(cfg, weights, 80)
    ctx = YieldingContext(Identity("replay", 0, run_seed=0))
    table = build_replay(ctx, cfg, cfg.algorithm.items.replay, 2000, SamplesPerInsert(1.0, 1, 1e9))

    async def draw() -> TransitionBatch:
        for unroll in unrolls:
            await table.insert(Stream(("actor", 0), 1), unroll)
        drawn = await table.sample(1000)
        assert isinstance(drawn, TransitionBatch)
        return drawn

    batch = asyncio.run(draw())
    known = table.state()[0]["sampler/weights"][batch.keys % 2000]
    update = DPGUpdate(made, cfg.algorithm)
    update.load(weights)
    update.restore({**{f"target/{name}": value for name, value in weights.items()}, "updates": np.array(0)})
    priorities = update.gradients(batch).priorities
    assert priorities is not None
    valued = (
        known != 1.0
    )  # the highest so far: a time limit ended episode and unroll before the policy evaluated the last observation
    np.testing.assert_allclose(priorities[valued], known[valued], atol=1e-5)
    assert (batch.discounts[~valued] > 0.0).all() and np.unique(batch.keys[~valued]).size < 80
    assert np.unique(known).size > 300
    if env is Lopsided:
        shorter = {round(float(discount), 4) for discount in batch.discounts}
        assert shorter == {0.0, 0.9, 0.81, 0.729}, "some windows must be cut by a termination or a time limit"


@pytest.mark.timeout(60)
def test_no_action_leaves_lopsided_bounds(stage: Any) -> None:
    """No action exceeds the bounds; the environment raises if one does."""
    result = train("apex-dpg", on="simulation", run_dir=stage.run, quiet=True, **{**SMALL, "env": Lopsided}).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 0)


def plain(observations: Any, actions: Any) -> ActorCritic:
    return ActorCritic(observations, actions, DPGNetworkConfig())


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env CartPole-v1", "need a Box of continuous actions"),
        ("--network.lstm 8", "--network.lstm must stay 0"),
        ("--network.critic-hidden 64", "at least two layers"),
        ("--noise 0.1 --least-noise 0.2", "exceeds --noise 0.1; lower it"),
        ("--reward.normalize", "--reward.normalize does not work"),
        ("--n-step 0", "--n-step is 0"),
        ("--replay.capacity 1000000000000", "GB are free"),
        ("--network.factory test_apex_dpg::plain", "without a critic"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "apex-dpg", "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()


def wide(observations: Any, actions: Any) -> DPGNetwork:
    return DPGNetwork(observations, actions, DPGNetworkConfig(hidden=(20,), critic_hidden=(20, 30)))


@pytest.mark.timeout(60)
def test_a_network_of_one_s_own(stage: Any) -> None:
    settings = {**SMALL, "total_steps": 400, "network": {"factory": wide}}
    run = train("apex-dpg", on="simulation", run_dir=stage.run, quiet=True, **settings)
    assert run.policy.network.state_dict()["critic.output.weight"].shape == (1, 30)
