"""Soft actor-critic finds the known optimal controller of a linear system, and swings a pendulum up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regulator import Regulator, riccati_gain

from thespis import train


@pytest.mark.timeout(300)
def test_the_gain_is_that_of_riccati_and_the_entropy_meets_its_target(tmp_path: Path) -> None:
    """With quadratic costs, entropy adds a constant to the value and does not change the optimal mean."""
    run = train(
        "sac", env=Regulator, on="simulation", total_steps=3_000, discount=0.95, tau=0.02, temperature=0.01,
        envs_per_actor=4, batch=128, batches_per_draw=4, publish_every=4,
        network={"hidden": (64, 64), "critic_hidden": (64, 64)}, reward={"kind": "scale", "scale": 0.1},
        replay={"samples_per_insert": 128.0, "warm_up": 500}, optimizer={"learning_rate": 0.002, "anneal": True},
        run_dir=tmp_path / "run", quiet=True, eval_episodes=0,
    )  # fmt: skip
    states = np.linspace(-0.8, 0.8, 9, dtype=np.float32)
    actions = np.array([run.policy.act(np.array([x])).item() for x in states])
    slope, offset = np.polyfit(states, actions, 1)
    assert -slope == pytest.approx(riccati_gain(0.95), rel=0.25)
    assert offset == pytest.approx(0.0, abs=0.4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    entropies = [row["train/entropy"] for row in rows if "train/entropy" in row]
    assert np.mean(entropies[-3:]) == pytest.approx(-1.0, abs=0.3)


PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "eval_episodes": 20, "eval_every": 0.0, "quiet": True}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_pendulum_is_swung_up(seed: int, tmp_path: Path) -> None:
    summary = train("sac", on="simulation", seed=seed, run_dir=tmp_path / "run", **PENDULUM).summary
    assert summary["env_steps"] <= 10_100
    assert summary["eval_return_mean"] >= -200


@pytest.mark.timeout(600)
def test_four_actors_fill_one_replay(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "sac", "actors": 4, **PENDULUM}
    summary = train("apex", on="simulation", run_dir=tmp_path / "run", **settings).summary
    assert summary["env_steps"] <= 10_100
    assert summary["eval_return_mean"] >= -200
