"""R2D3 opens a lock whose code random play never finds. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(300)
def test_r2d3_opens_the_lock(tmp_path: Path) -> None:
    """One episode in a million succeeds by chance; five demonstrations are enough."""
    run = train(
        "r2d3", env="thespis/Lock-v0", on="simulation", total_steps=8_000, network={"lstm": 32}, eval_episodes=4,
        eval_every=0.0, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert run.summary["env_steps"] <= 8_500
    assert run.summary["eval_return_mean"] == 1.0
    assert run.summary["return_mean_100"] > 0.2, "most of the environments that explore little succeed too"
