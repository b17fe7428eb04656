"""R2D3: its graph, a few updates under every runtime, recording, resume, and refused settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import newest
from safetensors.numpy import load_file

from thespis import train
from thespis.cli.main import main
from thespis.training.launch import launch
from thespis.training.registry import defaults

SMALL: dict[str, Any] = {
    "env": "thespis/Lock-v0", "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "sequence_length": 10,
    "burn_in": 3, "batch": 8, "batches_per_draw": 2, "target_period": 20, "total_steps": 800, "eval_episodes": 0,
    "replay": {"warm_up": 20, "samples_per_insert": 4.0, "capacity": 1000}, "demo_ratio": 0.25,
}  # fmt: skip


def saved(run: Path, role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    checkpoint = newest(run)
    return load_file(checkpoint / f"{role}-0.safetensors"), json.loads((checkpoint / f"{role}-0.json").read_text())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("on", "extra"),
    [
        ("simulation", {}),
        ("simulation", {"network": {"lstm": 0}}),
        ("simulation", {"replay": {**SMALL["replay"], "priority_exponent": 0.0, "actor_priorities": False}}),
        ("local", {}),
    ],
)
def test_a_few_updates(on: str, extra: dict[str, Any], stage: Any) -> None:
    run = train("r2d3", on=on, run_dir=stage.run, quiet=True, **{**SMALL, **extra})
    result = run.summary
    assert result["exit_reason"] == "total_steps" and 800 <= result["env_steps"] < 1500
    (_, agent), (weights, demos) = saved(stage.run, "replay"), saved(stage.run, "demonstrations")
    # The samples of both replays are the learned sequences, plus the prefetched ones.
    assert 0 <= agent["sampled"] + demos["sampled"] - 8 * result["updates"] <= 8 * 5
    share = demos["sampled"] / (agent["sampled"] + demos["sampled"])
    assert share == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / (8 * result["updates"])))
    assert result["samples_per_insert"] == pytest.approx(agent["sampled"] / agent["inserted"], rel=0.2)
    assert demos["written"] == 5 * 11, "five episodes of ten steps, and no steps of the agent"
    if not extra.get("replay"):
        assert (weights["sampler/weights"] != 1.0).all(), "initial priorities are 1, and the learner sent new ones"
        assert {"learner.demonstrations.sample", "learner.demonstrations.prioritise"} <= set(result["edges"])
    assert set(result["dropped"]) <= {"stale_priorities"}
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(60)
def test_one_seed_gives_one_result(tmp_path: Path) -> None:
    settings = {**SMALL, "on": "simulation", "total_steps": 400, "quiet": True}
    digests = [train("r2d3", run_dir=tmp_path / name, **settings).summary["weights_sha256"] for name in "ab"]
    assert digests[0] == digests[1]
    other = train("r2d3", run_dir=tmp_path / "c", **{**settings, "demo_ratio": 0.0}).summary
    assert other["weights_sha256"] != digests[0] and "learner.demonstrations.sample" not in other["edges"]


@pytest.mark.timeout(60)
def test_a_run_learns_from_what_another_recorded_and_is_resumed(stage: Any, capfd: Any) -> None:
    teacher, demos = stage.path / "teacher", stage.path / "demos"
    train("r2d3", on="simulation", run_dir=teacher, quiet=True, **{**SMALL, "total_steps": 300})
    assert main(["record", str(teacher), "--episodes", "7", "--sample", "--seed", "2", "--out", str(demos)]) == 0
    assert "7 episodes, 70 steps, mean return " in capfd.readouterr().out
    settings = {**SMALL, "on": "simulation", "demos": str(demos), "demo_episodes": 6}
    train("r2d3", run_dir=stage.run, quiet=True, **settings)
    before, counts = saved(stage.run, "demonstrations")
    assert counts["written"] == 6 * 11
    cfg = defaults("r2d3", None, {**settings, "total_steps": 1200, "keep": 5})
    launch("r2d3", cfg, resume=stage.run, quiet=True)
    after, later = saved(stage.run, "demonstrations")
    assert later["written"] == counts["written"] and later["sampled"] > counts["sampled"]
    assert ((before["sampler/weights"] > 0) == (after["sampler/weights"] > 0)).all()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env CartPole-v1", "r2d3 learns from demonstrations: give --demos"),
        ("--demos nowhere", "nowhere holds no demonstrations"),
        ("--env CartPole-v1 --demos thespis.envs.toys::open_lock", "open_lock returned 2"),
        ("--demo-ratio 1", "give at least 0 and less than 1"),
        ("--demo-episodes 0", "--demo-episodes is 0; give at least 1"),
        ("--env Pendulum-v1 --demos nowhere", "need Discrete actions"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: str, what: str, stage: Any, capfd: Any) -> None:
    words = flags.split() if "--env" in flags else ["--env", "thespis/Lock-v0", *flags.split()]
    assert main(["train", "r2d3", "--run-dir", str(stage.run), *words]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--episodes 0 --out new", "--episodes is 0; give at least 1"),
        ("--out .", "--out . already exists"),
        ("--episodes 2", "the following arguments are required: --out"),
        ("--out new", "holds no run"),
    ],
)
def test_recordings_that_are_impossible_are_one_line_errors(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["record", str(stage.path / "nothing"), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
