"""Learners with shards as a run: one seed gives one result, a lost shard is replaced, and every layout resumes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, newest, until
from safetensors.numpy import load_file

from thespis import train
from thespis.core.errors import ThespisError
from thespis.runs.checkpoints import read_meta
from thespis.training.resume import resume
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(600)
SMALL = {"on": "simulation", "actors": 2, "envs_per_actor": 4, "total_steps": 2_000, "eval_episodes": 0}
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_network.py"
STATEFUL = {
    "network": {"hidden": [16, 8], "lstm": 8, "normalize_observations": True},
    "reward": {"kind": "none", "normalize": True},
    "optimizer": {"kind": "rmsprop", "anneal": True, "momentum": 0.5},
}


def simulate(path: Path, architecture: str = "impala", **settings: Any) -> TrainedRun:
    return train(architecture, quiet=True, run_dir=path, **{**SMALL, **settings})


def slowly(stage: Stage) -> dict[str, Any]:
    """Settings of 4 seconds of virtual time with few steps; a restart takes half a second."""
    costs = stage.path / "costs.yaml"
    costs.write_text("work: {env_step: {base: 2.0e-3}}")
    settings = {"parallel": "tensor=2", "checkpoint_every": 0.2, "cost_model": costs, "unroll_length": 8}
    return {**settings, "total_steps": None, "total_seconds": 4.0}


def counters(path: Path) -> dict[str, int]:
    found: dict[str, int] = read_meta(newest(path))["monitor"]["counters"]
    return found


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("update-*"))


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("impala", {"parallel": "tensor=2", **STATEFUL}),
        ("impala", {"parallel": "pipeline=2", **STATEFUL}),
        ("impala", {"parallel": "tensor=3", "algorithm": "appo"}),
        ("impala", {"parallel": "tensor=2", "learners": 2}),
        ("ppo", {"parallel": "pipeline=2", "learners": 2, "epochs": 2}),
        ("seed", {"parallel": "tensor=2", "algorithm": "ppo", "epochs": 2}),
    ],
    ids=["tensor", "pipeline", "three", "hybrid", "hybrid-ppo", "seed"],
)
def test_a_seed_gives_one_result(architecture: str, settings: dict[str, Any], stage: Stage) -> None:
    runs = [simulate(stage.path / name, architecture, **settings) for name in "ab"]
    one, two = (run.summary["weights_sha256"] for run in runs)
    assert one and one == two
    assert runs[0].summary["updates"] > 2
    assert runs[0].summary["edges"]["learner.shard.forward"]["calls"] > 5
    found = counters(runs[0].path)
    assert not {name for name in found if name.startswith("group/")}, "no learner was lost, behind or in another state"


def test_a_resumed_run_equals_the_uninterrupted_one(stage: Stage) -> None:
    settings = {"checkpoint_every": 0.05, "keep": 100, "learners": 2, "parallel": "tensor=2", **STATEFUL}
    settings["total_steps"] = 8_000
    whole = simulate(stage.path / "whole", **settings)
    saved = checkpoints(whole.path)
    assert len(saved) >= 3
    again = stage.path / "again"
    shutil.copytree(whole.path, again)
    for later in checkpoints(again)[2:]:
        shutil.rmtree(later)
    assert resume(again, quiet=True).summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_run_continues_with_every_other_layout(stage: Stage) -> None:
    """Every checkpoint holds whole tensors of the same names and shapes."""
    simulate(stage.run, **STATEFUL)
    shapes = []
    for number, parallel in enumerate(("tensor=2", "pipeline=2", "tensor=3", "none"), 2):
        before = load_file(newest(stage.run) / "learner-0.safetensors")
        steps = number * int(SMALL["total_steps"])
        run = resume(stage.run, quiet=True, parallel=parallel, total_steps=steps)
        assert run.summary["exit_reason"] == "total_steps"
        after = load_file(newest(stage.run) / "learner-0.safetensors")
        shapes.append({name: array.shape for name, array in after.items()})
        assert shapes[-1] == {name: array.shape for name, array in before.items()}
        assert after["exchange/steps"] > before["exchange/steps"]


def test_after_the_loss_of_a_shard_the_learner_starts_again(stage: Stage) -> None:
    run = simulate(stage.run, faults=("kill shard 0 at 0.5",), **slowly(stage))
    assert run.summary["exit_reason"] == "total_seconds"
    assert run.summary["restarts"] == 4, "the shard, the learner, its queue and its weight store"
    assert run.summary["updates"] > 20


def test_other_learners_continue_without_a_lost_shard(stage: Stage) -> None:
    run = simulate(stage.run, faults=("kill shard 1 at 0.5",), learners=2, **slowly(stage))
    assert run.summary["exit_reason"] == "total_seconds"
    assert run.summary["restarts"] == 4 and run.summary["learner_events"]["lost"] == 1
    states = [load_file(newest(stage.run) / f"learner-{learner}.safetensors") for learner in range(2)]
    counts = [json.loads((newest(stage.run) / f"learner-{index}.json").read_text())["updates"] for index in range(2)]
    assert min(counts) > 50 and max(counts) - min(counts) <= 1, "the replacement takes part"
    if counts[0] == counts[1]:
        assert all((states[0][name] == states[1][name]).all() for name in states[0] if name.startswith("weights/"))


@pytest.mark.parametrize("parallel", ["tensor=2", "pipeline=2"])
def test_a_killed_shard_is_replaced(parallel: str, stage: Stage) -> None:
    words = f"--parallel {parallel} --actors 1 --envs-per-actor 4 --eval-episodes 0 --checkpoint-every 0.5"
    process = stage.start("train", "impala", "--run-dir", stage.run, *words.split(), "--total-steps", 10**9)

    def updates() -> int:
        saved = checkpoints(stage.run)
        return int(json.loads((saved[-1] / "learner-0.json").read_text())["updates"]) if saved else 0

    def pid(name: str) -> int:
        return int(json.loads((stage.run / "topology.json").read_text())["pids"][name])

    until(lambda: process.poll() is not None or updates() > 0, 120)
    assert process.poll() is None, process.communicate()
    learner = pid("learner")
    os.kill(pid("shard-0"), signal.SIGKILL)
    until(lambda: process.poll() is not None or pid("learner") != learner, 120)
    at = updates()
    until(lambda: process.poll() is not None or updates() > at, 120)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    state = load_file(newest(stage.run) / "learner-0.safetensors")
    assert state["weights/encoder.torsos.0.mlp.layers.1.weight"].shape == (64, 64)


@pytest.mark.parametrize(
    ("architecture", "settings", "says"),
    [
        ("impala", {"parallel": "tensor=0"}, "give none, tensor=2"),
        ("ppo", {"parallel": "tensor=2", "algorithm": "trpo"}, "trpo needs its network in one process"),
        ("seed", {"parallel": "tensor=2", "algorithm": "r2d2"}, "r2d2 needs its network in one process"),
        ("impala", {"parallel": "tensor=2", "network": {"factory": f"{EXAMPLE}::Residual"}}, "have known layers"),
        ("impala", {"parallel": "pipeline=2", "network": {"hidden": [64]}}, "at least two layers"),
        ("impala", {"parallel": "tensor=60", "network": {"hidden": [16]}}, "has 16 units for 60 processes"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    architecture: str, settings: dict[str, Any], says: str, stage: Stage
) -> None:
    with pytest.raises(ThespisError, match=says):
        train(architecture, quiet=True, run_dir=stage.run, on="simulation", **settings)
    assert not stage.run.exists()
