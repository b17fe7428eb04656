"""Every example runs with a small budget: scripts as a user starts them, custom parts in the simulation."""

from __future__ import annotations

import csv
import importlib.util
import json
import runpy
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT, Stage

import thespis

EXAMPLES = ROOT / "examples"
SMALL: dict[str, Any] = {"on": "simulation", "actors": 1, "envs_per_actor": 4, "total_steps": 600, "eval_episodes": 1}


def needs(library: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(library)
    return pytest.mark.skipif(found is None, reason=f"{library} is not installed: pip install {library}")


def script(stage: Stage, name: str, *words: object) -> str:
    """Run an example as a command; return the last line of its output."""
    line = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    ended = subprocess.run(line, cwd=stage.path, env=stage.environment(), capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["custom_env.py", "custom_network.py", "custom_algorithm.py"])
def test_a_part_of_your_own(
    name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the main part of an example with a small budget."""
    train, runs = thespis.train, []

    def short(architecture: str, **settings: Any) -> Any:
        runs.append(train(architecture, **{**settings, **SMALL, "run_dir": stage.run, "quiet": True}))
        return runs[-1]

    monkeypatch.setattr(thespis, "train", short)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    (run,) = runs
    assert run.summary["exit_reason"] == "total_steps" and run.summary["updates"]


@pytest.mark.parametrize("algorithm", ["vtrace", "a2c"])
def test_an_architecture_of_your_own(algorithm: str, stage: Stage) -> None:
    run = thespis.train(EXAMPLES / "lockstep.py", algorithm=algorithm, run_dir=stage.run, quiet=True, **SMALL)
    assert run.summary["exit_reason"] == "total_steps" and run.summary["updates"]


def test_callbacks_stop_a_run_and_write_a_file(stage: Stage) -> None:
    printed = script(stage, "custom_callback.py", "--patience", 1, "--run-dir", stage.run)
    assert printed.startswith("callback after ")
    assert json.loads((stage.run / "summary.json").read_text())["exit_reason"] == "callback"
    with open(stage.run / "curve.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and int(rows[-1]["step"]) > 0 and set(rows[0]) >= {"step", "rollout/ep_rew_mean"}


@needs("optuna")
def test_a_sweep(stage: Stage) -> None:
    printed = script(stage, "sweep_optuna.py", "--trials", 2, "--steps", 3_000, "--out", stage.path / "sweep")
    assert "best return" in printed and "learning_rate" in printed
    trials = sorted((stage.path / "sweep").iterdir())
    assert [trial.name for trial in trials] == ["trial-000", "trial-001"]
    rates = {thespis.load(trial).config.learned.optimizer.learning_rate for trial in trials}
    assert len(rates) == 2


@needs("pandas")
def test_metrics_are_read(stage: Stage) -> None:
    paths = [stage.path / "a", stage.path / "b"]
    for seed, path in enumerate(paths):
        settings = {**SMALL, "total_steps": 4_000, "report_every": 0.005, "seed": seed}
        thespis.train("impala", env="CartPole-v1", run_dir=path, quiet=True, **settings)
    assert script(stage, "read_metrics.py", *paths).endswith("%")
    functions = runpy.run_path(str(EXAMPLES / "read_metrics.py"))
    metrics, summaries = functions["read_metrics"](paths[0]), functions["read_summaries"](paths)
    summary = json.loads((paths[0] / "summary.json").read_text())
    assert summaries.loc["a", "lag.mean"] == summary["lag"]["mean"]
    assert metrics.index[-1] == summary["env_steps"] and metrics.index.is_unique
    assert set(functions["waiting"](metrics).index) >= {"actor", "learner"}


@needs("ray")
def test_a_job_on_ray_is_stopped_and_submitted_again(stage: Stage) -> None:
    words = ["--run-dir", stage.run, "--steps"]
    first = script(stage, "resume_on_ray.py", *words, 10**8, "--preempt-after", 20_000)
    assert first.startswith("interrupted after ")
    before = json.loads((stage.run / "summary.json").read_text())
    second = script(stage, "resume_on_ray.py", *words, before["env_steps"] + 10_000)
    assert second.startswith("total_steps after ")
    after = json.loads((stage.run / "summary.json").read_text())
    assert after["resumed_at_steps"] and after["updates"] > before["updates"]


def test_every_example_is_on_the_page() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    files = [path.name for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"))]
    assert not [name for name in files if f"(../examples/{name})" not in page]
