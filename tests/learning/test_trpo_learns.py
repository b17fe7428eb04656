"""TRPO solves its tasks, with steps within its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thespis import train

MAX_KL = 0.01


def solved(path: Path, **settings: Any) -> dict[str, Any]:
    """Train on CartPole, and check that all logged KL divergences are within the bound; return the summary."""
    run = train("trpo", env="CartPole-v1", max_kl=MAX_KL, report_every=0.1, eval_every=0.0, eval_episodes=20,
                run_dir=path, quiet=True, **settings)  # fmt: skip
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    divergences = [row["train/kl"] for row in rows if "train/kl" in row]
    assert len(divergences) >= 3, "the learner measures some of its updates"
    assert 0.0 < max(divergences) <= MAX_KL
    assert run.summary["eval_return_mean"] >= 475
    assert run.summary["lag"]["max"] == 0
    return run.summary


@pytest.mark.timeout(240)
def test_cartpole_is_solved_in_the_simulation(tmp_path: Path) -> None:
    assert solved(tmp_path / "run", on="simulation", stop_at_return=475)["exit_reason"] == "return_reached"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved_on_processes(seed: int, tmp_path: Path) -> None:
    solved(tmp_path / "run", seed=seed)
