"""Several learners solve the task of one learner: every kind of item, and every runtime on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train

pytestmark = pytest.mark.timeout(300)


def solve(place: Path, architecture: str, **settings: Any) -> dict[str, Any]:
    base = {"env": "CartPole-v1", "on": "simulation", "learners": 2, "actors": 2, "stop_at_return": 475}
    return train(architecture, run_dir=place / "run", quiet=True, **{**base, **settings}).summary


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_cartpole_is_solved_by_unrolls(tmp_path: Path, on: str, seed: int) -> None:
    summary = solve(tmp_path, "impala", on=on, seed=seed, envs_per_actor=16)
    assert summary["exit_reason"] == "return_reached" and summary["env_steps"] <= 500_000
    assert summary["eval_return_mean"] >= 475


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_by_rounds(tmp_path: Path, seed: int) -> None:
    summary = solve(tmp_path, "ppo", seed=seed, envs_per_actor=8)
    assert summary["exit_reason"] == "return_reached" and summary["env_steps"] <= 500_000


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_from_replays(tmp_path: Path, seed: int) -> None:
    summary = solve(tmp_path, "apex", seed=seed, on="local", stop_at_return=None, total_steps=60_000)
    assert summary["eval_return_mean"] >= 450
