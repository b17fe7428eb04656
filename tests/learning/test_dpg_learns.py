"""Ape-X DPG finds the known optimal controller of a linear system. Simulated: every run is equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from regulator import Regulator, riccati_gain

from thespis import train


@pytest.mark.timeout(300)
def test_the_gain_is_that_of_riccati(tmp_path: Path) -> None:
    """Use one-step returns, because n-step returns would include the noise of later actions."""
    run = train(
        "apex-dpg", env=Regulator, on="simulation", total_steps=4_000, discount=0.95, n_step=1, target_period=25,
        network={"hidden": (64, 64), "critic_hidden": (64, 64)}, reward={"kind": "scale", "scale": 0.1},
        replay={"samples_per_insert": 128.0, "warm_up": 500}, optimizer={"anneal": True},
        run_dir=tmp_path / "run", quiet=True, eval_episodes=0,
    )  # fmt: skip
    states = np.linspace(-0.8, 0.8, 9, dtype=np.float32)
    actions = np.array([run.policy.act(np.array([x])).item() for x in states])
    slope, offset = np.polyfit(states, actions, 1)
    assert riccati_gain(1.0) == pytest.approx(2.7016, abs=1e-3)
    assert -slope == pytest.approx(riccati_gain(0.95), rel=0.25)
    assert offset == pytest.approx(0.0, abs=0.4)
