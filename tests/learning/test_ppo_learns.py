"""PPO solves its tasks. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(240)
def test_cartpole_is_solved(tmp_path: Path) -> None:
    summary = train("ppo", env="CartPole-v1", on="simulation", seed=0, stop_at_return=475, eval_every=0.0,
                    run_dir=tmp_path / "run", quiet=True).summary  # fmt: skip
    assert summary["exit_reason"] == "return_reached"
    assert summary["eval_return_mean"] >= 475
    assert summary["lag"]["max"] == 0
