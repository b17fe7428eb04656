"""Workers that share parameters learn, with and without lock-step. Simulated: every run is equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "per_node", "lag"), [("a2c", None, 0), ("a2c", 2, 0), ("a3c", None, 3)])
def test_cartpole_is_solved(name: str, per_node: int | None, lag: int, tmp_path: Path) -> None:
    run = train(name, env="CartPole-v1", on="simulation", stop_at_return=475, eval_every=0.0, run_dir=tmp_path / "run",
                workers_per_node=per_node, quiet=True)  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "return_reached"
    assert result["env_steps"] <= 300_000
    assert result["eval_return_mean"] >= 475
    assert result["lag"]["mean"] == pytest.approx(lag, abs=0.1), (
        "four equal workers: three updates by others in between"
    )
