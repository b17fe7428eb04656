"""Soft actor-critic in the architectures that carry transitions: a few updates, repeated, resumed, refused."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import newest
from safetensors.numpy import load_file

from thespis import train
from thespis.algorithms.updates.sac import SACNetwork
from thespis.cli.main import main
from thespis.core.config_io import to_dict
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.dpg import DPGNetwork
from thespis.training.launch import launch
from thespis.training.registry import defaults

SMALL: dict[str, Any] = {
    "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "batch": 16, "batches_per_draw": 2, "total_steps": 600,
    "eval_episodes": 0, "network": {"hidden": [16], "critic_hidden": [16, 16]},
    "replay": {"warm_up": 100, "samples_per_insert": 4.0, "capacity": 4000},
}  # fmt: skip
CARRIERS = ["dqn", "apex", "gorila", "parameter-server"]


class Unbounded(gym.Env[Any, Any]):
    """An environment with unbounded actions."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CARRIERS)
def test_every_architecture_of_transitions_carries_it(name: str, stage: Any) -> None:
    settings = {**SMALL, "algorithm": "sac", "env": "Pendulum-v1"}
    run = train(name, on="simulation", run_dir=stage.run, quiet=True, **settings)
    assert run.summary["exit_reason"] == "total_steps" and run.summary["updates"] > 50
    assert (run.summary["restarts"], run.summary["dropped"]) == (0, {})
    network = run.policy.network
    assert isinstance(network, SACNetwork)
    assert network.log_temperature.item() != pytest.approx(np.log(run.config.algorithm.temperature), abs=1e-4)
    action = run.policy.act(np.zeros(3, np.float32))
    assert action.shape == (1,) and abs(action[0]) <= 2.0


@pytest.mark.timeout(120)
def test_on_processes_with_the_metrics_that_are_documented(stage: Any) -> None:
    result = train("sac", on="local", run_dir=stage.run, quiet=True, report_every=0.1, **SMALL).summary
    assert (result["exit_reason"], result["restarts"], result["env"]) == ("total_steps", 0, "Pendulum-v1")
    rows = [json.loads(line) for line in (stage.run / "metrics.jsonl").read_text().splitlines()]
    found = {name for row in rows for name in row}
    shown = "loss critic_loss actor_loss ent_coef_loss ent_coef entropy td_error q_mean target_mean"
    assert {f"train/{name}" for name in shown.split()} <= found


@pytest.mark.timeout(120)
def test_simulation_is_the_same_every_time(stage: Any) -> None:
    hashes = {
        train("sac", on="simulation", run_dir=stage.run / str(turn), quiet=True, **SMALL).summary["weights_sha256"]
        for turn in range(2)
    }
    assert len(hashes) == 1


@pytest.mark.timeout(120)
def test_a_resumed_run_goes_on_from_replay_targets_and_temperature(stage: Any) -> None:
    taken = train("sac", on="simulation", run_dir=stage.run, quiet=True, **SMALL).summary
    old = newest(stage.run)
    before = {path.stem: load_file(path) for path in old.glob("*.safetensors")}
    frozen = {
        "tau": 1e-30,
        "optimizer": {"learning_rate": 0.0},
    }  # the targets move by less than the resolution of float32
    more = {**SMALL, **frozen, "on": "simulation", "total_steps": taken["env_steps"] + 100, "keep": 5}
    launch("sac", defaults("sac", None, more), resume=stage.run, quiet=True)
    assert newest(stage.run) != old
    after = {path.stem: load_file(path) for path in newest(stage.run).glob("*.safetensors")}
    learned = {name: value for part in before.values() for name, value in part.items()}
    later = {name: value for part in after.values() for name, value in part.items()}
    targets = [name for name in learned if "target/" in name]
    temperatures = [name for name in learned if name.endswith("log_temperature")]
    assert targets and temperatures
    for name in [*targets, *temperatures]:
        np.testing.assert_allclose(later[name], learned[name], rtol=0, atol=1e-20, err_msg=name)
    counts = [json.loads((path / "replay-0.json").read_text())["inserted"] for path in (old, newest(stage.run))]
    assert counts[1] > counts[0]


def test_without_an_environment_the_preset_s_own_is_trained_with_its_settings() -> None:
    for name, data in (("sac", {}), ("dqn", {"algorithm": "sac"}), ("apex", {"algorithm": "sac"})):
        given = defaults(name, "Pendulum-v1", data)
        assert to_dict(defaults(name, None, data)) == to_dict(given)
        assert (given.env, given.total_steps, given.algorithm.tau) == ("Pendulum-v1", 10_000, 0.02)
    other = defaults("sac", "MountainCarContinuous-v0", {})
    assert (other.env, other.algorithm.tau, other.algorithm.items.batch) == ("MountainCarContinuous-v0", 0.005, 256)


def test_other_defaults_do_not_follow_an_environment_that_was_not_given() -> None:
    assert defaults("dqn", None, {}).algorithm.items.n_step == 3
    assert defaults("dqn", "CartPole-v1", {}).algorithm.items.n_step == 10


def without_critics(observations: Any, actions: Any) -> DPGNetwork:
    return DPGNetwork(observations, actions, DPGNetworkConfig())


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env CartPole-v1", "need a Box of continuous actions"),
        ("--env test_sac::Unbounded", "some dimensions of Box(-inf, inf, (1,), float32) have none"),
        ("--network.lstm 8", "--network.lstm must stay 0"),
        ("--network.critic-hidden 64", "at least two layers"),
        ("--replay.actor-priorities", "leave --replay.actor-priorities off"),
        ("--reward.normalize", "--reward.normalize does not work"),
        ("--temperature 0", "--temperature is 0"),
        ("--network.factory test_sac::without_critics", "without critics"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "sac", "--on", "simulation", "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()


def wide(observations: Any, actions: Any) -> SACNetwork:
    return SACNetwork(observations, actions, DPGNetworkConfig(hidden=(20,), critic_hidden=(20, 30)), critics=3)


@pytest.mark.timeout(60)
def test_a_network_of_one_s_own(stage: Any) -> None:
    settings = {**SMALL, "total_steps": 300, "network": {"factory": wide}}
    run = train("sac", on="simulation", run_dir=stage.run, quiet=True, **settings)
    assert run.policy.network.state_dict()["critics.each.2.output.weight"].shape == (1, 30)
