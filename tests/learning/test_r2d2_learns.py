"""R2D2 remembers for longer than one sequence. Simulated, so that every run gives the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thespis import train
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.envs.make import make_envs
from thespis.training.trained_run import TrainedRun


def late_answers(run: TrainedRun, episodes: int = 64) -> float:
    """Return the share of right answers in the second half of greedy episodes."""
    envs, runner = make_envs("thespis/Recall-v0", episodes), run.policy.policy_runner(0)
    inputs, state = first_inputs(envs.reset(1000), envs), runner.initial_state(episodes)
    rewards = []
    for _ in range(40):
        acted = runner.act(inputs, state, greedy=True)
        step = envs.step(acted.actions)
        inputs, state = next_inputs(step, acted.actions), acted.state
        rewards.append(step.rewards)
    envs.close()
    late = np.stack(rewards[20:])
    return float(np.count_nonzero(late > 0) / np.count_nonzero(late))


@pytest.mark.timeout(120)
def test_r2d2_answers_late_questions(tmp_path: Path) -> None:
    """Sequences are 9 steps; only a state carried from sequence to sequence reaches from the cue to the 40th step."""
    settings: dict[str, Any] = {"on": "simulation", "eval_episodes": 20, "eval_every": 0.0, "quiet": True}
    run = train("r2d2", env="thespis/Recall-v0", run_dir=tmp_path / "run", **settings)
    assert run.summary["env_steps"] <= 98_000
    assert late_answers(run) >= 0.95
