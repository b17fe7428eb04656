"""APPO solves its task, with actors that run ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved(seed: int, tmp_path: Path) -> None:
    summary = train("appo", env="CartPole-v1", seed=seed, eval_every=0.0, eval_episodes=20, run_dir=tmp_path / "run",
                    quiet=True).summary  # fmt: skip
    assert summary["eval_return_mean"] >= 475
    assert summary["lag"]["max"] >= 1, "actors act while the learner learns"


@pytest.mark.timeout(240)
def test_it_learns_from_a_policy_that_is_ten_updates_old(tmp_path: Path) -> None:
    summary = train("appo", env="CartPole-v1", on="simulation", forced_lag=10, stop_at_return=200, eval_episodes=0,
                    run_dir=tmp_path / "run", quiet=True).summary  # fmt: skip
    assert summary["exit_reason"] == "return_reached"
    assert summary["lag"]["mean"] >= 10
