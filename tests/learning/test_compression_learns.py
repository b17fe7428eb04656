"""Compressed gradients with error feedback solve what exact ones solve; without it, the fewest numbers do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train

pytestmark = pytest.mark.timeout(300)
ARCHITECTURES: dict[str, dict[str, Any]] = {"a2c": {}, "impala": {"learners": 2, "actors": 2, "envs_per_actor": 16}}


def learn(place: Path, architecture: str, seed: int, **settings: Any) -> dict[str, Any]:
    return train(
        architecture, env="CartPole-v1", on="simulation", run_dir=place / "run", quiet=True, seed=seed,
        stop_at_return=475, total_steps=500_000, eval_episodes=0, **ARCHITECTURES[architecture], **settings,
    ).summary  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("settings", [{"gradients": "powersgd"}, {"gradients": "topk", "gradients_share": 0.1}],
                         ids=["powersgd", "topk"])  # fmt: skip
def test_cartpole_is_solved(tmp_path: Path, settings: dict[str, Any], architecture: str, seed: int) -> None:
    summary = learn(tmp_path, architecture, seed, **settings)
    assert summary["exit_reason"] == "return_reached" and summary["env_steps"] <= 300_000


def test_error_feedback_is_needed(tmp_path: Path) -> None:
    assert learn(tmp_path / "with", "a2c", 0, gradients="topk")["exit_reason"] == "return_reached"
    without = learn(tmp_path / "without", "a2c", 0, gradients="topk", gradients_feedback=False)
    assert without["exit_reason"] == "total_steps"


def test_signs_learn_faster_with_error_feedback(tmp_path: Path) -> None:
    given, without = (
        learn(tmp_path / name, "a2c", 0, gradients="sign", gradients_feedback=name == "with")
        for name in ("with", "without")
    )
    assert given["exit_reason"] == "return_reached" and given["env_steps"] < 0.9 * without["env_steps"]
