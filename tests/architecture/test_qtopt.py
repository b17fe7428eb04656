"""QT-Opt: graph, a few updates, mixed actions, phases, kills, resume, and refused settings."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import newest, until
from safetensors.numpy import load_file

from thespis import train
from thespis.cli.main import main
from thespis.core.config import ReplayConfig, RewardConfig
from thespis.core.errors import ThespisError
from thespis.networks.configs import QFunctionConfig
from thespis.training.launch import check_settings, launch
from thespis.training.registry import defaults
from thespis.training.trained_run import TrainedRun

SMALL: dict[str, Any] = {
    "env": "Pendulum-v1", "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "updaters": 2, "trainers": 2,
    "shards": 2, "batch": 16, "batches_per_draw": 2, "total_steps": 1000, "eval_episodes": 2, "eval_every": 0.0,
    "network": {"hidden": [16, 16], "cem": {"samples": 16, "elites": 4}},
    "replay": {"warm_up": 200, "samples_per_insert": 4.0, "capacity": 4000},
}  # fmt: skip


class Gripper(gym.Env[Any, Any]):
    """A gripper task: reward 1 for closing near the observed position; an episode has at most three steps."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Dict({"close": gym.spaces.Discrete(2), "to": gym.spaces.Box(-2, 2, (1,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal, self._steps = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self._goal, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        held = bool(action["close"] and abs(action["to"][0] - 2 * self._goal[0]) < 0.5)
        return self._goal, float(held), bool(action["close"]), self._steps == 3, {}


def swing() -> Any:
    """A weak policy for Pendulum, which pushes in the direction of the motion."""
    return lambda obs: np.array([2.0 if obs[2] > 0 else -2.0], np.float32)


def saved(run: Path, role: str) -> dict[str, Any]:
    checkpoint = newest(run)
    result: dict[str, Any] = json.loads((checkpoint / f"{role}.json").read_text())
    return result | {"arrays": load_file(checkpoint / f"{role}.safetensors")}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    run = train("qtopt", on=on, run_dir=stage.run, quiet=True, **SMALL)
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["updates"] > 100
    assert result["eval_episodes"] == 2 and -2000 < result["eval_return_mean"] < 0
    assert (result["restarts"], result["dropped"]) == (0, {})
    assert 2.0 < result["samples_per_insert"] < 4.5, "of the replay; labelled batches are counted separately"
    trained = sum(saved(stage.run, f"trainer-{index}")["updates"] for index in range(2))
    server = saved(stage.run, "server-0")
    assert abs(server["updates"] - trained) <= 2
    assert server["lagged_at"] == server["updates"] // 200 * 200
    average = np.concatenate([saved(stage.run, f"server-{index}")["arrays"]["average"] for index in range(2)])
    acting = np.concatenate([value.numpy().ravel() for value in run.policy.network.state_dict().values()])
    np.testing.assert_array_equal(acting, average)


@pytest.mark.timeout(120)
def test_a_simulated_run_repeats_to_the_bit(stage: Any) -> None:
    runs = [train("qtopt", on="simulation", run_dir=stage.path / name, quiet=True, **{**SMALL, "eval_episodes": 0})
            for name in ("a", "b")]  # fmt: skip
    assert runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["updater 0", "trainer 1", "server 0"])
def test_training_goes_on_after_a_death(victim: str, stage: Any) -> None:
    # Long enough for a killed role to restart before the end.
    settings = {**SMALL, "total_steps": 2500, "eval_episodes": 0, "checkpoint_every": 0.1}
    result = train("qtopt", on="simulation", run_dir=stage.run, quiet=True, faults=(f"kill {victim} at 0.15",),
                 **settings).summary  # fmt: skip
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 1)
    lost = {"updater": "unlabelled_batches", "trainer": "sampled_batches"}
    role = victim.split()[0]
    assert role not in lost or result["dropped"][lost[role]] == 1
    assert result["updates"] > 500


@pytest.mark.timeout(120)
def test_a_killed_updater_on_processes(stage: Any) -> None:
    process = stage.start("train", "qtopt", "--env", "Pendulum-v1", "--run-dir", stage.run, "--updaters", 2,
                          "--eval-episodes", 0, "--checkpoint-every", 0.3, "--total-steps", 4000, "--batch", 16,
                          "--replay.samples-per-insert", 4, "--replay.warm-up", 100, "--network.cem.samples", 16,
                          "--report-every", 0.2)  # fmt: skip
    until(lambda: list(stage.run.glob("checkpoints/update-*")))
    os.kill(json.loads((stage.run / "topology.json").read_text())["pids"]["updater-1"], signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    result = TrainedRun(stage.run).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 1)
    assert result["dropped"]["unlabelled_batches"] == 1


@pytest.mark.timeout(60)
def test_a_run_is_resumed_and_its_policy_played(stage: Any, capsys: Any) -> None:
    settings = {**SMALL, "on": "simulation", "eval_episodes": 0}
    result = train("qtopt", run_dir=stage.run, quiet=True, **settings).summary
    run = launch("qtopt", defaults("qtopt", None, {**settings, "total_steps": 1500}), resume=stage.run, quiet=True)
    assert saved(stage.run, "server-0")["updates"] > result["updates"]
    assert main(["eval", str(stage.run), "--episodes", "1"]) == 0
    assert "mean return -" in capsys.readouterr().out
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    assert run.policy.act(obs).tobytes() == run.policy.act(obs).tobytes()


@pytest.mark.timeout(60)
def test_offline_data_comes_first_and_then_both(stage: Any) -> None:
    phases = {"demos": swing, "demo_episodes": 3, "offline_updates": 150, "shards": 1, "eval_episodes": 0}
    result = train("qtopt", on="simulation", run_dir=stage.run, quiet=True,
                 **{**SMALL, **phases, "report_every": 0.02, "total_steps": 600}).summary  # fmt: skip
    rows = [json.loads(line) for line in (stage.run / "metrics.jsonl").read_text().splitlines()]
    before = [row for row in rows if not row["step"] and "replay/demo_share" in row]
    assert before and all(row["replay/demo_share"] == 1.0 for row in before)
    assert any(0.2 < row.get("replay/demo_share", 1.0) < 0.8 for row in rows)
    assert result["updates"] > 200 and saved(stage.run, "demonstrations-0")["written"] >= 3 * 200


@pytest.mark.timeout(120)
def test_numbers_and_choices_are_learned_together_by_cross_entropy(stage: Any) -> None:
    """One step is enough: move to the position and close. Random actions succeed once in nine episodes."""
    run = train("qtopt", env=Gripper, on="simulation", run_dir=stage.run, quiet=True, total_steps=2000, actors=1,
                loss="cross-entropy", discount=0.9, decay=0.98, epsilon_steps=1000, epsilon_end=0.1,
                replay={"warm_up": 300, "samples_per_insert": 32.0}, eval_episodes=50, eval_every=0.0)  # fmt: skip
    assert run.summary["eval_return_mean"] > 0.8
    action = run.policy.act(np.array([0.5], np.float32))
    assert action["close"] == 1 and abs(action["to"][0] - 1.0) < 0.5


@pytest.mark.timeout(60)
def test_rewards_that_are_no_success_are_refused_with_cross_entropy(stage: Any) -> None:
    from thespis.training.trained_run import RunFailed

    with pytest.raises((ThespisError, RunFailed), match="use --loss squared"):
        train("qtopt", on="simulation", run_dir=stage.run, quiet=True, **{**SMALL, "loss": "cross-entropy"})


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"updaters": 0}, "--updaters is 0"),
        ({"trainers": 0}, "--trainers is 0"),
        ({"buffer": 0}, "--buffer is 0"),
        ({"decay": 1.0}, "--decay is 1.0; give at least 0 and less than 1"),
        ({"online_share": 0.0}, "--online-share is 0"),
        ({"offline_updates": 10}, "give --demos"),
        ({"reward": RewardConfig(normalize=True)}, "qtopt stores shaped rewards"),
        ({"replay": ReplayConfig(priority_exponent=0.6)}, "samples uniformly"),
        ({"network": QFunctionConfig(lstm=8)}, "--network.lstm 0"),
        ({"network": QFunctionConfig(hidden=(8,))}, "at least two layers"),
    ],
)
def test_settings_it_cannot_have(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        check_settings("qtopt", defaults("qtopt", None, {**settings, "on": "simulation"}))


def test_actions_of_several_parts_are_refused_elsewhere(stage: Any) -> None:
    with pytest.raises(ThespisError, match="only qtopt learns"):
        train("impala", env=Gripper, run_dir=stage.run, quiet=True)
    assert not stage.run.exists()
