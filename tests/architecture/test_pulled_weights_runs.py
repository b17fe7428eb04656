"""Runs whose actors pull compressed weights: equal to the bit, resumed, with faults, and on processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stage, newest, until
from safetensors.numpy import load_file

from thespis import resume, train
from thespis.core.errors import ThespisError
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(180)
SMALL: dict[str, Any] = {"on": "simulation", "eval_episodes": 2, "quiet": True, "actors": 2, "envs_per_actor": 2}
REPLAYED: dict[str, Any] = {
    **SMALL,
    "batch": 16,
    "replay": {"warm_up": 100, "capacity": 2000},
    "total_steps": 400,
    "eval_max_steps": 50,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "impala": ("impala", {**SMALL, "total_steps": 2000}),
    "impala, old weights": ("impala", {**SMALL, "total_steps": 2000, "forced_lag": 3}),
    "impala, two learners": ("impala", {**SMALL, "total_steps": 2000, "learners": 2}),
    "ppo": ("ppo", {**SMALL, "total_steps": 2000, "unroll_length": 64}),
    "trpo": ("trpo", {**SMALL, "total_steps": 2000, "unroll_length": 64}),
    "apex": ("apex", REPLAYED),
    "r2d2": ("r2d2", {**REPLAYED, "network": {"lstm": 8, "hidden": (8,)}, "total_steps": 1500}),
    "sac": ("sac", {**REPLAYED, "env": "Pendulum-v1", "network": {"hidden": (16,), "critic_hidden": (16, 16)}}),
    "apex-dpg": ("apex-dpg", {**REPLAYED, "env": "Pendulum-v1"}),
}


def run(stage: Stage, name: str, case: str, **more: Any) -> TrainedRun:
    architecture, settings = CASES[case]
    return train(architecture, run_dir=stage.path / name, **{**settings, **more})


def pulled(made: TrainedRun) -> float:
    """Bytes of a pull of an actor."""
    name = next(name for name in made.summary["edges"] if name.startswith("actor.weights."))
    edge = made.summary["edges"][name]
    return float((edge["bytes"] - edge["sent"]) / edge["calls"])


@pytest.mark.parametrize("case", CASES)
def test_differences_give_the_run_of_the_rounded_weights(case: str, stage: Stage) -> None:
    """On a network on which bytes take no time, the two have the same actions, updates and weights."""
    costs = stage.path / "costs.yaml"
    costs.write_text("edges: {default: {latency: 1.0e-4, bandwidth: .inf}}")
    rounded = run(stage, "rounded", case, weights="bfloat16", cost_model=costs)
    delta = run(stage, "delta", case, weights="delta", cost_model=costs)
    exact = run(stage, "exact", case, cost_model=costs)
    assert delta.summary["weights_sha256"] == rounded.summary["weights_sha256"] != exact.summary["weights_sha256"]
    assert delta.summary["return_mean"] == rounded.summary["return_mean"]
    assert pulled(delta) < pulled(rounded) < 0.6 * pulled(exact)
    counted = delta.summary["weights"]
    assert counted["deltas"] > counted["anchors"] and counted["wire_bytes"] < counted["raw_bytes"]
    assert "gaps" not in counted and "broken_chains" not in counted
    assert exact.summary["weights"] == {}
    evaluated = delta.summary["edges"]["evaluator.weights.pull_exact"]
    assert evaluated["bytes"] == exact.summary["edges"]["evaluator.weights.pull"]["bytes"] > 0


def test_critics_are_not_sent(stage: Stage) -> None:
    made = run(stage, "run", "sac", weights="bfloat16")
    arrays = load_file(next(newest(made.path).glob("learner-*.safetensors")))
    sizes = {name: value.size for name, value in arrays.items() if name.startswith("weights/")}
    acting = sum(size for name, size in sizes.items() if "critic" not in name and "temperature" not in name)
    assert acting < 0.5 * sum(sizes.values())
    counted = made.summary["weights"]
    assert counted["raw_bytes"] / counted["wire_bytes"] == pytest.approx(2 * sum(sizes.values()) / acting, rel=1e-6)


@pytest.mark.parametrize("case", ["impala", "ppo", "apex"])
def test_simulation_is_the_same_every_time(case: str, stage: Stage) -> None:
    one, two = (run(stage, name, case, weights="delta") for name in ("one", "two"))
    for key in ("weights_sha256", "edges", "weights", "wall_seconds", "return_mean"):
        assert one.summary[key] == two.summary[key]


@pytest.mark.parametrize("case", ["impala", "apex"])
def test_a_resumed_run_equals_the_uninterrupted_one(case: str, stage: Stage) -> None:
    whole = run(
        stage,
        "whole",
        case,
        weights="delta",
        checkpoint_every=0.03,
        keep=100,
        total_steps=8000 if case == "impala" else 400,
    )
    saved = sorted((whole.path / "checkpoints").glob("update-*"))
    assert len(saved) > 2, "there was no cut"
    dtypes = {value.dtype for name, value in load_file(next(saved[0].glob("learner-*.safetensors"))).items()
              if name.startswith("weights/")}  # fmt: skip
    assert dtypes == {np.dtype(np.float32)}
    shutil.copytree(whole.path, stage.path / "again")
    for later in saved[1:]:
        shutil.rmtree(stage.path / "again" / "checkpoints" / later.name)
    again = resume(stage.path / "again", quiet=True)
    for key in ("weights_sha256", "edges", "weights"):
        assert again.summary[key] == whole.summary[key]


def test_a_run_goes_on_in_another_form(stage: Stage) -> None:
    run(stage, "run", "impala", weights="delta")
    made = resume(stage.run, quiet=True, weights="float32", total_steps=4000)
    before = made.summary["weights"]["wire_bytes"]
    made = resume(stage.run, quiet=True, weights="bfloat16", total_steps=6000)
    assert made.summary["exit_reason"] == "total_steps" and made.summary["weights"]["wire_bytes"] > before


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("impala", "kill actor 1 at 0.05"),
        ("impala", "kill weights 0 at 0.05"),
        ("impala", "lose actor.weights.pull at 0.05"),
        ("impala", "delay actor.weights.pull by 0.1 at 0.05"),
        ("ppo", "kill actor 1 at 0.2"),
        ("ppo", "lose actor.weights.next at 0.1"),
        ("apex", "kill weights 0 at 0.1"),
    ],
)
def test_training_goes_on_after(case: str, fault: str, stage: Stage) -> None:
    made = run(stage, "run", case, weights="delta", faults=(fault,), total_steps=16_000 if case != "apex" else 3000)
    assert made.summary["exit_reason"] == "total_steps"
    assert bool(made.summary["restarts"]) == fault.startswith("kill")
    counted = made.summary["weights"]
    assert "broken_chains" not in counted
    if made.summary["restarts"]:
        assert counted["anchors"] > 2
        assert "gaps" in counted or not fault.startswith("kill weights")
    else:
        assert counted["anchors"] == 2 + counted.get("gaps", 0), "every actor begins with a whole version"


@pytest.mark.parametrize("case", ["impala", "ppo", "apex"])
def test_compressed_weights_on_processes(case: str, stage: Stage) -> None:
    made = run(stage, "run", case, weights="delta", on="local", total_steps=4000)
    assert made.summary["exit_reason"] == "total_steps"
    counted = made.summary["weights"]
    assert counted["deltas"] > 0 and "broken_chains" not in counted
    assert counted["raw_bytes"] > 1.9 * counted["wire_bytes"]


@pytest.mark.parametrize("killed", ["storage", "actor-0"])
def test_a_process_is_killed(killed: str, stage: Stage) -> None:
    """An actor continues with a whole version: because it has none, or because the store has forgotten its own."""
    flags = """--weights delta --actors 2 --envs-per-actor 2 --batch 16 --eval-episodes 0 --total-steps 1000000000
               --replay.warm-up 200 --checkpoint-every 1 --report-every 0.1"""
    process = stage.start("train", "apex", "--run-dir", stage.run, *flags.split())

    def counted(name: str) -> int:
        rows = (stage.run / "metrics.jsonl").read_text().splitlines() if (stage.run / "metrics.jsonl").exists() else []
        return int(json.loads(rows[-1]).get(f"weights/{name}", 0)) if rows else 0

    until(lambda: process.poll() is not None or (counted("deltas") > 20 and list_checkpoints(stage.run)), 60)
    assert process.poll() is None, process.communicate()
    deltas, anchors = counted("deltas"), counted("anchors")
    os.kill(int(json.loads((stage.run / "topology.json").read_text())["pids"][killed]), signal.SIGKILL)
    until(lambda: counted("anchors") > anchors and counted("deltas") > deltas + 20, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    summary = json.loads((stage.run / "summary.json").read_text())
    assert summary["restarts"] > 0 and "broken_chains" not in summary["weights"]
    assert ("gaps" in summary["weights"]) == (killed == "storage")


def list_checkpoints(path: Path) -> list[Path]:
    return list((path / "checkpoints").glob("update-*"))


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("impala", {"weights": "float16"}, "float16"),
        ("seed", {"weights": "delta"}, "weights"),
        ("a2c", {"weights": "delta"}, "weights"),
        ("qtopt", {"weights": "bfloat16"}, "weights"),
    ],
)
def test_what_cannot_work_is_refused(name: str, given: dict[str, Any], complaint: str, stage: Stage) -> None:
    with pytest.raises(ThespisError, match=complaint):
        train(name, run_dir=stage.run, on="simulation", quiet=True, **given)
    assert not stage.run.exists()
