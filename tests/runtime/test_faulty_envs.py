"""Environments that raise, hang or return invalid results: the error names them, and no learner sees the results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stage
from safetensors.numpy import load_file

from thespis import train
from thespis.training.trained_run import RunFailed

pytestmark = pytest.mark.timeout(120)
WORDS = {
    "raise": "env 0, episode 0, step 3: step raised RuntimeError: injected fault at step 3",
    "nan_reward": "env 0, episode 0, step 3: reward is nan",
    "nan_obs": "env 0, episode 0, step 3: observation holds nan",
    "exit": "env 0, episode 0, step 3: step raised SystemExit: ",
    "shape": "env 0, episode 0, step 3: observation has shape (3,), the space says (2,)",
}
SMALL = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 0, "env": "factories::faulty", "quiet": True}


def assert_finite(run: Path) -> None:
    for path in run.glob("checkpoints/update-*/*.safetensors"):
        assert all(np.isfinite(array).all() for array in load_file(path).values()), f"{path} is spoiled"


@pytest.mark.parametrize("fault", WORDS)
def test_a_fault_that_comes_back_ends_the_run(fault: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    with pytest.raises(RunFailed) as failure:
        train("impala", on="simulation", run_dir=stage.run, total_steps=5000, **SMALL)
    assert str(failure.value).startswith(f"actor 0: EnvError: {WORDS[fault]}")
    assert "no running event loop" not in str(failure.value), "the traceback contains no error but the environment's"
    assert json.loads((stage.run / "summary.json").read_text())["restarts"] == 3
    assert_finite(stage.run)


@pytest.mark.parametrize("fault", WORDS)
def test_a_fault_that_passes_is_survived(fault: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("ONCE", str(stage.path / "once"))
    run = train("impala", on="simulation", run_dir=stage.run, total_steps=1000, **SMALL)
    assert run.summary["restarts"] == 1
    assert f"actor 0: EnvError: {WORDS[fault]}; restarting" in (stage.run / "log.txt").read_text()
    assert_finite(stage.run)


def test_an_error_is_reported_once_with_its_traceback(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """On local processes: three restarts with back-off, then the run ends."""
    monkeypatch.setenv("FAULT", "raise")
    ended = stage.train("--env", "factories::faulty", "--total-steps", 10**6)
    assert ended.returncode == 1
    result = f"thespis: actor 0: EnvError: {WORDS['raise']} (after 3 restarts)"
    assert ended.stderr.count(result) == 1
    assert ended.stderr.count("in step\n    raise RuntimeError") == 1, "the traceback is shown once"
    assert ended.stderr.count("; restarting in") == 3
    assert str(stage.run) in ended.stderr
    assert json.loads((stage.run / "summary.json").read_text())["exit_reason"] == "error"


def test_a_run_that_ends_before_its_first_report_saves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hang comes before the first flush of the simulation, which counts steps."""
    monkeypatch.setenv("FAULT", "hang")
    settings = {**SMALL, "env_timeout": 0.5, "env": "factories::faulty", "unroll_length": 2, "batch_unrolls": 1}
    with pytest.raises(RunFailed, match="did not return within 0.5 s"):
        train("impala", on="simulation", run_dir=stage.run, total_steps=5000, **settings)
    summary = json.loads((stage.run / "summary.json").read_text())
    assert summary["env_steps"] > 0 and summary["checkpoint"] is not None


@pytest.mark.parametrize(
    ("env", "place"), [("faulty", "env 0, episode 0, step 3"), ("hangs_in_reset", "env 0, episode 1, step 0")]
)
def test_a_hanging_environment_is_named_and_replaced(
    env: str, place: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("ONCE", str(stage.path / "once"))
    ended: Any = stage.train("--env", f"factories::{env}", "--env-timeout", 0.5, "--total-steps", 600, seconds=80)
    assert f"actor 0: EnvError: {place}: did not return within 0.5 s; restarting" in ended.stderr
    assert ended.returncode == 0
    assert_finite(stage.run)


def test_an_environment_that_hangs_while_it_is_made_or_closed_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCE", str(stage.path / "once"))
    ended = stage.train("--env", "factories::holds", "--env-timeout", 1, "--total-steps", 300, seconds=80)
    assert "EnvError: env 0: __init__ did not return within 1 s; restarting" in ended.stderr
    assert re.search(r"actor 0: (EnvError: )?env 0: close did not return .*at the end", ended.stderr)
    assert ended.returncode == 0


@pytest.mark.parametrize(("fault", "on"), [("crash", "local"), ("raise", "simulation")])
def test_an_environment_that_fails_to_close_is_trained_in(
    fault: str, on: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No role makes an environment only for its spaces, because it would have to be closed again."""
    monkeypatch.setenv("FAULT", fault)
    ended = stage.train("--env", "factories::sour", "--total-steps", 300, "--on", on)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((stage.run / "summary.json").read_text())["restarts"] == 0
    assert "Traceback" not in ended.stderr


def test_a_broken_environment_is_reported_before_anything_starts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "raise")
    ended = stage.train("--env", "factories::broken")
    assert ended.returncode == 2
    first, *rest = ended.stderr.splitlines()
    assert first == (
        "thespis: environment 'factories::broken' fails in step, so nothing was started: "
        "env 0, episode 0, step 1: step raised RuntimeError: not today"
    )
    assert rest[1].endswith("in step") and rest[2].strip() == 'raise RuntimeError("not today")' and len(rest) == 3
    assert not stage.run.exists()
