"""Evolution strategies learn. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis import train


@pytest.mark.timeout(120)
def test_cartpole_is_solved(tmp_path: Path) -> None:
    """A few generations of short episodes, cut by the paper's cap, give a policy whose episodes exceed the cap."""
    result = train("es", env="CartPole-v1", on="simulation", total_steps=400_000, cap_factor=2.0, eval_every=0.0,
                 run_dir=tmp_path / "run", quiet=True).summary  # fmt: skip
    assert result["eval_return_mean"] >= 475
