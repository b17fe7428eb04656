"""DQN: its graph, a few updates under every runtime, its replay ratio, and its replay after a resume."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from conftest import newest
from safetensors.numpy import load_file

from thespis import train
from thespis.algorithms.dqn import EpsilonSchedule
from thespis.cli.main import main
from thespis.core.config import QNetworkConfig, RewardConfig
from thespis.core.errors import ThespisError
from thespis.training.launch import check_settings, launch
from thespis.training.registry import defaults

SMALL: dict[str, Any] = {
    "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "n_step": 3, "batch": 16, "batches_per_draw": 2,
    "target_period": 20, "total_steps": 1500, "eval_episodes": 0,
    "replay": {"warm_up": 200, "samples_per_insert": 4.0, "capacity": 1000},
}  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("on", "exponent"), [("simulation", 0.6), ("local", 0.0), ("local", 0.6)])
def test_a_few_updates(on: str, exponent: float, stage: Any) -> None:
    replay = {**SMALL["replay"], "priority_exponent": exponent}
    run = train("dqn", on=on, run_dir=stage.run, quiet=True, **{**SMALL, "replay": replay})
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["env_steps"] >= 1500
    edges = {"learner.replay.sample", "learner.weights.publish", "actor.replay.insert", "actor.weights.pull"}
    assert set(result["edges"]) == edges | ({"learner.replay.prioritise"} if exponent else set())
    # The ratio holds on every runtime: samples follow the inserts after the warm-up, within the error.
    saved = json.loads((newest(stage.run) / "replay-0.json").read_text())
    error = 2 * max(4.0 * 2 * (5 + 3), 32)
    assert abs(4.0 * (saved["inserted"] - 200) - saved["sampled"]) <= error
    assert saved["sampled"] // 16 - 4 <= result["updates"] <= saved["sampled"] // 16
    assert saved["written"] > 1000, "the ring was overwritten"
    assert set(result["dropped"]) <= {"stale_priorities"}
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_resumed_run_has_its_replay_again(on: str, stage: Any) -> None:
    taken = train("dqn", on=on, run_dir=stage.run, quiet=True, **SMALL).summary["env_steps"]
    before, old = load_file(newest(stage.run) / "replay-0.safetensors"), newest(stage.run)
    counts = json.loads((old / "replay-0.json").read_text())
    cfg = defaults("dqn", None, {**SMALL, "on": on, "total_steps": taken + 100, "keep": 5})
    launch("dqn", cfg, resume=stage.run, quiet=True)
    assert newest(stage.run) != old
    after = load_file(newest(stage.run) / "replay-0.safetensors")
    later = json.loads((newest(stage.run) / "replay-0.json").read_text())
    assert later["inserted"] > counts["inserted"] and later["sampled"] > counts["sampled"]
    # Rows that were not overwritten are equal to the bit.
    kept = np.arange(later["written"] - 1000, counts["written"] - 4 * 2) % 1000
    assert len(kept) > 300
    for name in ("steps/frames/", "steps/actions", "steps/rewards", "steps/versions"):
        np.testing.assert_array_equal(after[name][kept], before[name][kept])


def test_epsilon_falls_with_the_steps_of_all_actors() -> None:
    falling = EpsilonSchedule(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1000)
    shares = [falling.amount(steps, range(4), 16) for steps in (0, 500, 1000, 9999)]
    assert shares == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"network": QNetworkConfig(lstm=8)}, "--network.lstm must stay 0"),
        ({"reward": RewardConfig(normalize=True)}, "--reward.normalize"),
        ({"n_step": 0}, "--n-step is 0"),
    ],
)
def test_settings_it_cannot_have(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        check_settings("dqn", defaults("dqn", None, {**settings, "on": "simulation"}))


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env Pendulum-v1", "need Discrete actions"),
        ("--replay.warm-up 200000", "warm-up 200000 exceeds capacity 100000"),
        ("--replay.capacity 1000000000000", "GB are free; give --replay.bytes"),
        ("--replay.bytes 1000", "fewer than the warm-up"),
        ("--replay.error 3", "both could wait forever"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "dqn", "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fault",
    [
        "kill actor 0 at 0.08",
        "kill learner 0 at 0.15",
        "lose actor.replay.insert at 0.05",
        "lose learner.replay.sample at 0.1",
    ],
)
def test_the_ratio_holds_whatever_fails(fault: str, stage: Any) -> None:
    settings = {**SMALL, "actors": 1, "faults": (fault,)}
    result = train("dqn", on="simulation", run_dir=stage.run, quiet=True, **settings).summary
    assert result["exit_reason"] == "total_steps"
    assert result["restarts"] == ("kill" in fault)
    saved = json.loads((newest(stage.run) / "replay-0.json").read_text())
    assert abs(4.0 * (saved["inserted"] - 200) - saved["sampled"]) <= 2 * max(4.0 * 2 * (5 + 3), 32)
    # No step is stored twice: the inserted items are the steps taken, except for open and cut windows.
    assert result["env_steps"] - 3 * 2 * (5 + 3) <= saved["inserted"] <= result["env_steps"]
    if fault.startswith("kill actor"):
        assert 0 < result["dropped"]["open_windows"] <= 2 * 2
