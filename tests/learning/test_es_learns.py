"""Evolution strategies learn. Simulated, so that every run is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(120)
def test_cartpole_is_solved(tmp_path: Path) -> None:
    """In few generations of short episodes, by the paper's cap; what is learned lives longer than the cap."""
    result = train("es", env="CartPole-v1", on="simulation", total_steps=400_000, cap_factor=2.0, eval_every=0.0,
                 run_dir=tmp_path / "run", quiet=True).summary  # fmt: skip
    assert result["eval_return_mean"] >= 475
