"""R2D2: its graph, a few updates under every runtime, its replay after a resume, and refused settings."""

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
    "env": "thespis/Recall-v0", "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "sequence_length": 10,
    "burn_in": 3, "batch": 8, "batches_per_draw": 2, "target_period": 20, "total_steps": 1500, "eval_episodes": 0,
    "replay": {"warm_up": 20, "samples_per_insert": 4.0, "capacity": 1000},
}  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("on", "extra"),
    [
        ("simulation", {}),
        ("simulation", {"state": "zero"}),
        ("simulation", {"network": {"lstm": 0}}),
        ("simulation", {"env": "CartPole-v1"}),
        ("local", {}),
    ],
)
def test_a_few_updates(on: str, extra: dict[str, Any], stage: Any) -> None:
    run = train("r2d2", on=on, run_dir=stage.run, quiet=True, **{**SMALL, **extra})
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["env_steps"] >= 1500
    saved = json.loads((newest(stage.run) / "replay-0.json").read_text())
    # The ratio counts sequences, about one per unroll and environment.
    most = 2 * (5 + 13 // 5 + 2)
    assert abs(4.0 * (saved["inserted"] - 20) - saved["sampled"]) <= 2 * max(4.0 * most, 16)
    assert saved["sampled"] // 8 - 4 <= result["updates"] <= saved["sampled"] // 8
    assert saved["written"] > 1000, "the ring was overwritten"
    assert set(result["dropped"]) <= {"stale_priorities"}
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
def test_one_seed_gives_one_result(tmp_path: Path) -> None:
    settings = {**SMALL, "on": "simulation", "total_steps": 600, "quiet": True}
    digests = [train("r2d2", run_dir=tmp_path / name, **settings).summary["weights_sha256"] for name in "ab"]
    assert digests[0] == digests[1]
    assert (
        train("r2d2", run_dir=tmp_path / "c", **{**settings, "state": "zero"}).summary["weights_sha256"] != digests[0]
    )


@pytest.mark.timeout(120)
def test_a_resumed_run_has_its_sequences_again(stage: Any) -> None:
    train("r2d2", on="simulation", run_dir=stage.run, quiet=True, **SMALL)
    old = newest(stage.run)
    before = load_file(old / "replay-0.safetensors")
    counts = json.loads((old / "replay-0.json").read_text())
    cfg = defaults("r2d2", None, {**SMALL, "on": "simulation", "total_steps": 2000, "keep": 5})
    launch("r2d2", cfg, resume=stage.run, quiet=True)
    after = load_file(newest(stage.run) / "replay-0.safetensors")
    later = json.loads((newest(stage.run) / "replay-0.json").read_text())
    assert later["inserted"] > counts["inserted"] and later["sampled"] > counts["sampled"]
    # Rows that were not overwritten still have their states, to the bit.
    kept = np.arange(later["written"] - 1000, counts["written"] - 4 * 5) % 1000
    places = before["window/places"][kept]
    np.testing.assert_array_equal(after["window/places"][kept], places)
    states = places[places >= 0]
    assert len(states) > 30
    for part in ("2", "3"):
        np.testing.assert_array_equal(after[f"window/{part}"][states], before[f"window/{part}"][states])
        assert before[f"window/{part}"][states].any()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env Pendulum-v1", "need Discrete actions"),
        ("--burn-in 11", "some steps would never be trained; give it at least 21"),
        ("--burn-in -1", "--burn-in is -1; give at least 0"),
        ("--replay.capacity 500", "a replay of 500 steps cannot hold"),
        ("--replay.bytes 100000", "cannot hold the sequences"),
        ("--replay.capacity 1000000000000", "GB are free; give --replay.bytes"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "r2d2", "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()
