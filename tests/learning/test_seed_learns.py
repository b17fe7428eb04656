"""SEED learns, although its weights change within unrolls."""

from __future__ import annotations

from typing import Any

import pytest

from thespis import train


@pytest.mark.timeout(240)
def test_seed_learns_cartpole(stage: Any) -> None:
    run = train("seed", env="CartPole-v1", on="simulation", actors=2, envs_per_actor=16, stop_at_return=200,
                total_steps=150_000, eval_episodes=0, run_dir=stage.run, quiet=True)  # fmt: skip
    assert run.summary["exit_reason"] == "return_reached"
    assert run.summary["lag"]["max"] >= 1, "the learner continues while actors act"
