"""The example algorithm learns. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train

FILE = Path(__file__).resolve().parents[2] / "examples" / "custom_algorithm.py"


@pytest.mark.timeout(240)
def test_an_algorithm_of_a_user_s_file_learns_cartpole(tmp_path: Path) -> None:
    run = train(
        "impala",
        algorithm=f"{FILE}::MyAlgorithm",
        env="CartPole-v1",
        on="simulation",
        actors=1,
        total_steps=300_000,
        stop_at_return=450,
        run_dir=tmp_path / "run",
        quiet=True,
    )
    assert run.summary["exit_reason"] == "return_reached"
    assert run.summary["eval_return_mean"] >= 400
