"""Numbers in `info` at the end of episodes: from every kind of vector to reports and metrics."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import thespis
from thespis.cli.main import main
from thespis.core.context import Report
from thespis.core.types import Episode
from thespis.envs.autoreset import Environments
from thespis.envs.infos import means, metric, numbers
from thespis.envs.sync import SyncVector
from thespis.runs.monitor import Monitor


class Goal(gym.Env[Any, Any]):
    """Ends after `length` steps; every other episode succeeds. Each step reports a distance; the last one counts."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (2,), np.float32), Discrete(2)
        self.length, self.episode, self.at = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.at = self.episode + 1, 0
        return np.zeros(2, np.float32), {"distance": 99.0, "is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        over = self.at == self.length
        info: dict[str, Any] = {"distance": np.float32(self.length - self.at + self.episode), "text": "hm"}
        if over:
            info["is_success"] = self.episode % 2 == 0
        return np.zeros(2, np.float32), 1.0, over, False, info


def make_goal(**kwargs: Any) -> gym.Env[Any, Any]:
    return Goal(**kwargs)


def played(environments: Environments, steps: int) -> list[Episode]:
    environments.reset(0)
    actions = np.zeros(environments.num_envs, np.int64)
    return [episode for _ in range(steps) for episode in environments.step(actions).episodes]


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_every_vector_gives_the_info_of_the_last_step(mode: AutoresetMode | None) -> None:
    builds = [lambda: Goal(2), lambda: Goal(3)]
    left = iter(builds)
    vector: Any = SyncVector(lambda: next(left)(), 2) if mode is None else SyncVectorEnv(builds, autoreset_mode=mode)
    environments = Environments(vector)
    environments.track(["distance", "text", "absent"])
    episodes = played(environments, 9)
    environments.close()
    for length in (2, 3):
        infos = [episode.info for episode in episodes if episode.length == length]
        assert infos[:2] == [{"is_success": 0.0, "distance": 1.0}, {"is_success": 1.0, "distance": 2.0}]


def test_success_alone_is_tracked_without_being_asked_for() -> None:
    assert [episode.info for episode in played(Environments(SyncVector(Goal, 1)), 3)] == [{"is_success": 0.0}]


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({"x": np.array([1.0, 2.0])}, {"x": 2.0}),
        ({"x": np.array([1.0, 2.0]), "_x": np.array([True, False])}, None),
        ({"x": np.array([1, 2]), "_x": np.array([True, True])}, {"x": 2.0}),
        ({"final_info": {"x": np.array([0, 3])}, "x": np.array([7, 8])}, {"x": 3.0}),
        ({"final_info": np.array([None, {"x": 4}], object)}, {"x": 4.0}),
        ({"final_info": np.array([{"x": 4}, None], object)}, None),
        ({"x": np.array([np.nan, np.nan])}, None),
        ({"x": 3.0}, None),
        ({"x": np.array(["a", "b"])}, None),
        ({"x": np.zeros((2, 3))}, None),
        ({}, None),
    ],
)
def test_formats_of_native_vectors(info: dict[str, Any], found: dict[str, float] | None) -> None:
    assert numbers(info, 1, ["x"]) == found


def test_reports_carry_infos_in_their_place() -> None:
    episodes = [Episode(1.0, 2), Episode(3.0, 4, {"x": 0.5}), Episode(5.0, 6)]
    report = Report("actor", 0, episodes=episodes)
    assert pickle.loads(pickle.dumps(report)) == report


def test_means_are_of_the_window_and_survive_a_checkpoint() -> None:
    monitor = Monitor()
    episodes = [Episode(1.0, 1, {"is_success": float(k % 4 == 0), "x": k}) for k in range(200)]
    monitor.add(Report("actor", 0, episodes=[Episode(0.0, 1), *episodes]), 1.0)
    saved = json.loads(json.dumps(monitor.state(1.0)))
    row = monitor.row(2.0)
    assert row["rollout/success_rate"] == 0.25 and row["rollout/info/x"] == np.mean(range(100, 200))
    assert Monitor.restore(saved, None, 1.0).row(2.0)["rollout/success_rate"] == 0.25
    assert means([Episode(0.0, 1), Episode(0.0, 1, {"x": 2.0})]) == {"x": 2.0}, "over the episodes that report it"
    assert metric("is_success", "eval") == "eval/success_rate" and metric("x", "rollout") == "rollout/info/x"


@pytest.mark.parametrize("name", ["impala", "seed", "es", "a3c"])
def test_runs_report_what_environments_say(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more: dict[str, Any] = {"network": {"hidden": (4,)}} if name != "es" else {"pairs": 4, "noise_table": 100_000}
    run = thespis.train(
        name, env=make_goal, on="simulation", actors=1, envs_per_actor=4, total_steps=200, eval_episodes=4,
        track_info=["distance", "nothing"], run_dir=tmp_path / "run", quiet=True, **more,
    )  # fmt: skip
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    together = {key: value for row in rows for key, value in row.items()}
    assert 0.0 < together["rollout/success_rate"] < 1.0 and together["rollout/info/distance"] > 1.0
    assert together["eval/success_rate"] in (0.0, 0.5, 1.0) and "eval/info/distance" in together
    assert "--track-info nothing: no episode ended with a number" in (run.path / "log.txt").read_text()
    if name == "impala":
        assert run.evaluate(episodes=2).info == {"is_success": 0.5, "distance": 1.5}
        assert main(["eval", str(run.path), "--episodes", "2"]) == 0
        assert "mean is_success 0.5" in capsys.readouterr().out
