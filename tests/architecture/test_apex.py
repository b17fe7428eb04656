"""Ape-X: its graph, its epsilon ladder, and a few updates by priority under every runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from conftest import newest
from safetensors.numpy import load_file

from thespis import train
from thespis.algorithms.dqn import EpsilonLadder
from thespis.architectures.apex import Config


def test_the_ladder_is_the_paper_s() -> None:
    ladder = EpsilonLadder()
    whole = np.concatenate([ladder.amount(0, range(4 * actor, 4 * actor + 4), 8) for actor in range(2)])
    paper = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655]
    np.testing.assert_allclose(whole, paper, rtol=1e-3)
    single = [ladder.amount(0, range(actor, actor + 1), 4).item() for actor in range(4)]
    np.testing.assert_allclose(single, [0.4, 0.047156, 0.005559, 0.000655], rtol=1e-3)
    assert ladder.amount(0, range(1), 1).tolist() == [0.4]
    assert Config().algorithm.exploration == ladder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    run = train(
        "apex", on=on, run_dir=stage.run, quiet=True, actors=2, envs_per_actor=2, unroll_length=5, batch=16,
        total_steps=1500, eval_episodes=0, replay={"warm_up": 200, "samples_per_insert": 4.0, "capacity": 4000},
    )  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["updates"] > 100
    assert "learner.replay.prioritise" in result["edges"]
    assert result["dropped"] == {}, "nothing was overwritten, so no priority was stale"
    checkpoint = newest(stage.run)
    saved = load_file(checkpoint / "replay-0.safetensors")
    inserted = json.loads((checkpoint / "replay-0.json").read_text())["inserted"]
    weights = saved["sampler/weights"]
    assert np.count_nonzero(weights) == inserted
    assert len(np.unique(weights)) > 0.9 * inserted, "every transition has its own initial priority"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("every", [0.1, 1000.0])
def test_a_killed_replay_goes_on_from_its_checkpoint(every: float, stage: Any) -> None:
    """The run counts the items since the checkpoint, or all items if there was no checkpoint."""
    result = train(
        "apex", on="simulation", run_dir=stage.run, quiet=True, actors=1, envs_per_actor=2, unroll_length=5, batch=16,
        total_steps=1500, eval_episodes=0, replay={"warm_up": 200, "samples_per_insert": 4.0, "capacity": 4000},
        checkpoint_every=every, keep=50, faults=("kill replay 0 at 0.35",),
    ).summary  # fmt: skip
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 2), "replay and weight store share a process"
    metas = [json.loads(path.read_text()) for path in (stage.run / "checkpoints").glob("update-*/meta.json")]
    assert metas
    lost = result["dropped"]["replay/inserted"]
    assert 0 < lost < 300 if every < 1 else lost > 300
