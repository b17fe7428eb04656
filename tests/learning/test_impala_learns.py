"""IMPALA solves its tasks, and fails where it must. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train

LAGGED: dict[str, Any] = {
    "env": "CartPole-v1",
    "actors": 1,
    "envs_per_actor": 8,
    "unroll_length": 20,
    "total_steps": 150_000,
    "forced_lag": 10,
    "optimizer": {"learning_rate": 3e-3, "anneal": False},
}
MEMORY: dict[str, Any] = {"env": "thespis/Memory-v0", "actors": 1}


def learn(place: Path, **settings: Any) -> dict[str, Any]:
    return train("impala", run_dir=place / "run", quiet=True, **{"on": "simulation", **settings}).summary


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_within_400_000_steps(tmp_path: Path, seed: int) -> None:
    summary = learn(tmp_path, env="CartPole-v1", seed=seed, actors=1, stop_at_return=475)
    assert summary["exit_reason"] == "return_reached"
    assert summary["env_steps"] <= 400_000
    assert summary["eval_return_mean"] >= 475


@pytest.mark.timeout(120)
def test_cartpole_is_solved_on_local_processes(tmp_path: Path) -> None:
    summary = learn(tmp_path, env="CartPole-v1", on="local", stop_at_return=475)
    assert summary["exit_reason"] == "return_reached"
    assert summary["env_steps"] <= 400_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [0, 1])
def test_v_trace_survives_a_lag_of_ten_updates(tmp_path: Path, seed: int) -> None:
    summary = learn(tmp_path, **LAGGED, seed=seed)
    assert summary["lag"]["mean"] >= 10
    assert summary["return_mean_100"] >= 450


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [0, 1])
def test_without_correction_the_same_lag_is_fatal(tmp_path: Path, seed: int) -> None:
    summary = learn(tmp_path, **LAGGED, seed=seed, correction=False)
    assert summary["lag"]["mean"] >= 10
    assert summary["return_mean_100"] <= 100


@pytest.mark.timeout(240)
def test_an_lstm_remembers_the_cue(tmp_path: Path) -> None:
    assert learn(tmp_path, **MEMORY, network={"lstm": 32})["return_mean_100"] >= 0.95


@pytest.mark.timeout(240)
def test_a_feed_forward_network_is_at_chance(tmp_path: Path) -> None:
    # 100 episodes of +1 or -1 at even odds: the mean is within 0.4 of 0, except once in 16,000 times.
    assert abs(learn(tmp_path, **MEMORY)["return_mean_100"]) <= 0.4


@pytest.mark.timeout(240)
def test_pendulum_is_learned_with_continuous_actions(tmp_path: Path) -> None:
    # A random policy has about -1200; the preset reaches about -200 after 600,000 steps.
    assert learn(tmp_path, env="Pendulum-v1", actors=1, total_steps=400_000)["return_mean_100"] >= -500
