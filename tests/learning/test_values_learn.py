"""DQN and Gorila solve their tasks. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "on": "simulation", "eval_episodes": 20, "eval_every": 0.0}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "steps"), [("dqn", 51_000), ("gorila", 61_000)])
def test_cartpole_is_solved(name: str, steps: int, tmp_path: Path) -> None:
    summary = train(name, run_dir=tmp_path / "run", quiet=True, **CARTPOLE).summary
    assert summary["env_steps"] <= steps
    assert summary["eval_return_mean"] >= 475
