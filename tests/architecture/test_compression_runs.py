"""Runs with compressed gradients: bytes as the runtime counts them, resuming, faults, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import Stage, newest
from safetensors.numpy import load_file

from thespis import resume, train
from thespis.core.errors import ThespisError
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(180)
SMALL: dict[str, Any] = {"on": "simulation", "eval_episodes": 0, "quiet": True}
WORKERS: dict[str, Any] = {**SMALL, "actors": 3, "envs_per_actor": 2, "unroll_length": 5, "total_steps": 1500}
GROUP: dict[str, Any] = {**SMALL, "actors": 2, "learners": 2, "envs_per_actor": 4, "total_steps": 6000}
METHODS = ["bfloat16", "int8", "topk", "sign", "powersgd"]
CASES = {"a2c": WORKERS, "a3c": WORKERS, "parameter-server": WORKERS, "impala": GROUP, "ppo": GROUP}


class Images(gym.Env[np.ndarray, np.int64]):
    """Atari's shapes, for the network of DQN."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._image(), float(action == 0), False, False, {}

    def _image(self) -> Any:
        return self.np_random.integers(0, 256, (4, 84, 84), np.uint8)


WARM: dict[str, Any] = {"topk": {"gradients_warm_up": 0}}
"""Settings of methods whose first messages are larger."""


def per_call(run: TrainedRun, edge: str) -> tuple[float, float]:
    """Bytes of a call and of its reply."""
    counted = run.summary["edges"][edge]
    return counted["sent"] / counted["calls"], (counted["bytes"] - counted["sent"]) / counted["calls"]


def test_bytes_of_a_push_of_the_nature_network(stage: Stage) -> None:
    sizes = {}
    for method in ("float32", *METHODS):
        run = train("a2c", env=Images, gradients=method, run_dir=stage.path / method, time_limit=50, actors=1,
                    envs_per_actor=2, unroll_length=5, total_steps=30, **WARM.get(method, {}), **SMALL)  # fmt: skip
        sizes[method], reply = per_call(run, "worker.server.push")
        assert reply == pytest.approx(sizes["float32"], rel=1e-3), "parameters come back as float32"
        if method != "float32":
            counted = run.summary["gradients"]
            assert counted["raw_bytes"] / counted["wire_bytes"] == pytest.approx(
                sizes["float32"] / sizes[method], rel=0.02
            )
    ratio = {method: sizes["float32"] / size for method, size in sizes.items()}
    assert ratio["bfloat16"] == pytest.approx(2, rel=1e-3) and ratio["int8"] == pytest.approx(4, rel=1e-3)
    assert ratio["topk"] >= 30 and ratio["sign"] >= 28 and ratio["powersgd"] >= 100


def test_bytes_of_a_round_of_a_group(stage: Stage) -> None:
    """The reply to one of two learners is the other's contribution; of four, all receive one encoding of the mean."""
    for learners in (2, 4):
        sizes = {}
        for method in ("float32", "topk"):
            settings = {**GROUP, **WARM.get(method, {}), "actors": 4, "learners": learners}
            run = train("impala", gradients=method, run_dir=stage.path / f"{method}-{learners}", **settings)
            sizes[method] = per_call(run, "learner.group.combine")
        for exact, small in zip(sizes["float32"], sizes["topk"], strict=True):
            vectors, matrices, sections = 4 * 195, 8 * 45, 8 * 8  # biases and the value head; 1% of 4,480
            assert exact > 18_000 and small < vectors + matrices + sections + 400


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("a2c", "topk"),
        ("a2c", "sign"),
        ("a3c", "powersgd"),
        ("parameter-server", "int8"),
        ("impala", "topk"),
        ("impala", "powersgd"),
        ("ppo", "sign"),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, method: str, stage: Stage) -> None:
    settings = {**CASES[name], "gradients": method, "checkpoint_every": 0.1 if name == "ppo" else 0.03, "keep": 100}
    if CASES[name] is WORKERS:
        settings["shards"] = 2
    whole = train(name, run_dir=stage.path / "whole", **settings)
    saved = sorted((whole.path / "checkpoints").glob("update-*"))
    assert len(saved) > 2, "there was no cut"
    assert any("memory" in name for file in saved[0].glob("*.safetensors") for name in load_file(file))
    shutil.copytree(whole.path, stage.path / "again")
    for later in saved[1:]:
        shutil.rmtree(stage.path / "again" / "checkpoints" / later.name)
    again = resume(stage.path / "again", quiet=True)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"] is not None
    assert again.summary["gradients"] == whole.summary["gradients"]
    last = [newest(path) for path in (whole.path, again.path)]
    for file in last[0].glob("*.safetensors"):
        one, two = load_file(file), load_file(last[1] / file.name)
        for key in (key for key in one if "memory" in key or "factors" in key):
            np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize(
    ("name", "fault", "lost"),
    [
        ("a2c", "kill worker 1 at 0.05", 2),  # one memory per shard
        ("a3c", "kill server 0 at 0.05", 0),
        ("a3c", "lose worker.server.push at 0.05", 0),
        ("impala", "kill learner 1 at 0.1", 1),
        ("impala", "kill group 0 at 0.1", 0),  # it encodes nothing for two learners
        ("impala", "lose learner.group.combine at 0.1", 0),
    ],
)
def test_training_goes_on_after(name: str, fault: str, lost: int, stage: Stage) -> None:
    settings = {
        **CASES[name],
        "gradients": "topk",
        "faults": (fault,),
        "total_steps": 24_000 if name == "impala" else 8_000,
        "checkpoint_every": 1000.0,
    }
    if CASES[name] is WORKERS:
        settings["shards"] = 2
    run = train(name, run_dir=stage.run, **settings)
    assert run.summary["exit_reason"] == "total_steps"
    assert bool(run.summary["restarts"]) == fault.startswith("kill")
    assert run.summary["gradients"].get("lost_memories", 0) == lost
    rows = [json.loads(row) for row in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["gradients/wire_bytes"] < rows[-1]["gradients/raw_bytes"]


def weights_by_update(checkpoint: Path) -> set[tuple[int, bytes]]:
    """Update count and weights of each learner."""
    found = set()
    for file in checkpoint.glob("learner-*.safetensors"):
        arrays = load_file(file)
        weights = b"".join(arrays[name].tobytes() for name in sorted(arrays) if name.startswith("weights/"))
        found.add((int(json.loads(file.with_suffix(".json").read_text())["updates"]), weights))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_learners_of_a_group_stay_equal(method: str, stage: Stage) -> None:
    run = train("impala", gradients=method, run_dir=stage.run, **{**GROUP, "actors": 3, "learners": 3})
    states = weights_by_update(newest(run.path))
    assert len(states) == len({updates for updates, _ in states})
    assert run.summary["learner_events"] == {}


def test_a_run_goes_on_with_another_method_and_other_workers(stage: Stage) -> None:
    train("a2c", run_dir=stage.run, gradients="powersgd", **WORKERS)
    changes = ({"gradients": "topk"}, {"gradients_share": 0.1}, {"gradients": "float32", "gradients_share": 0.01})
    sent = []
    for number, change in enumerate(changes, 2):
        run = resume(stage.run, quiet=True, actors=4, total_steps=number * 1500, **change)
        assert run.summary["exit_reason"] == "total_steps"
        sent.append(run.summary["gradients"]["wire_bytes"])
    assert sent[0] < sent[1] == sent[2], "float32 is not counted as compressed"


def test_a_run_with_the_former_name_of_the_setting_goes_on(stage: Stage) -> None:
    train("a3c", run_dir=stage.run, gradients="bfloat16", **WORKERS)
    config = stage.run / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("gradients_")]
    former = "\n".join(lines).replace("gradients: bfloat16", "gradient_dtype: bfloat16")
    assert "gradient_dtype" in former
    config.write_text(former)
    sent = resume(stage.run, quiet=True, total_steps=3000).summary["gradients"]
    assert sent["raw_bytes"] > 1.9 * sent["wire_bytes"]
    assert "gradients: bfloat16" in config.read_text()


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_compressed_gradients_on_processes(name: str, stage: Stage) -> None:
    run = train(name, run_dir=stage.run, gradients="powersgd", **{**CASES[name], "on": "local"})
    assert run.summary["exit_reason"] == "total_steps"
    counted = run.summary["gradients"]
    assert counted["raw_bytes"] > 4 * counted["wire_bytes"] and "lost_memories" not in counted
    edge = run.summary["edges"]["worker.server.push" if name == "a2c" else "learner.group.combine"]
    assert 0 < edge["sent"] < edge["bytes"]


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("impala", {"learners": 1, "gradients": "topk"}, "one learner sends none; give --learners 2"),
        ("a3c", {"on": "local", "hogwild": True, "gradients": "sign"}, "leave off --shards and --gradients"),
        (
            "a2c",
            {"gradients": "topk", "gradients_share": 0.9},
            "--gradients-share is 0.9; give more than 0",
        ),
        ("a2c", {"gradients": "topk", "gradients_rank": 3}, "give --gradients powersgd"),
    ],
)
def test_what_cannot_work_is_refused(name: str, given: dict[str, Any], complaint: str, stage: Stage) -> None:
    with pytest.raises(ThespisError, match=complaint):
        train(name, run_dir=stage.run, **{**CASES[name], **given})
