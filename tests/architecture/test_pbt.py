"""Population-based training: its graph, every runtime, resume, a killed trainer, and refused settings."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from thespis import train
from thespis.architectures.pbt import Config
from thespis.cli.main import main
from thespis.core.errors import ThespisError
from thespis.population.history import History, HistoryRow, read_history
from thespis.runs.checkpoints import Checkpoints, policy_weights, weights_sha256
from thespis.training.launch import launch

SMALL: dict[str, Any] = {
    "member": "a2c",
    "population": 2,
    "share": 0.5,
    "slots": 2,
    "envs_per_actor": 16,
    "total_steps": 6000,
    "interval": 1000,
    "settings": ("unroll_length=8", "network.hidden=[8]"),
    "eval_every": 0.0,
    "eval_episodes": 2,
}


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load matplotlib, which keeps font files open that the stage would report."""
    monkeypatch.setattr("thespis.population.plot.draw_ancestry", lambda path: "")


def check(run: Any, restarts: int = 0) -> list[HistoryRow]:
    """Check every run: all steps are counted, all copies are complete, and the policy is the leader's."""
    result, rows = run.summary, read_history(run.path)
    assert result["exit_reason"] == "total_steps" and result["restarts"] == restarts
    last = {row.member: row for row in rows}
    assert result["env_steps"] == sum(row.steps for row in last.values()) >= 6000
    assert all(3000 <= row.steps < 3400 for row in last.values()), "each member took its steps"
    assert result["updates"] == sum(member.updates for member in members(run.path).values())
    for member in members(run.path).values():
        assert Checkpoints(run.path / "members" / member.run / "checkpoints", 1).newest_valid().path is not None
    leader = max(members(run.path).values(), key=lambda member: member.score or 0.0)
    found = Checkpoints(run.path / "members" / leader.run / "checkpoints", 1).newest_valid().path
    assert found is not None
    assert result["weights_sha256"] == weights_sha256(policy_weights(found) or {})
    assert result["eval_episodes"] == 2 and run.policy.network is not None
    return rows


def members(path: Path) -> dict[int, Any]:
    return History(path).members


@pytest.mark.timeout(120)
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
def test_simulation_is_the_same_every_time(synchronous: bool, stage: Any) -> None:
    runs = [
        train("pbt", on="simulation", synchronous=synchronous, run_dir=stage.path / name, quiet=True, **SMALL)
        for name in ("one", "two")
    ]
    rows = check(runs[0])
    assert any(row.event == "copy" for row in rows)
    assert rows == read_history(runs[1].path) and runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]
    if synchronous:
        rounds = [row.steps // 1000 for row in rows if row.event == "ready"]
        assert rounds == sorted(rounds), "no member continues before the last one is ready"


@pytest.mark.timeout(120)
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(stage: Any) -> None:
    """Synchronous members do not depend on time: each has the same history and the same weights.

    The order in which members become ready depends on time, and so does the order of their rows.
    """
    whole = train("pbt", on="simulation", synchronous=True, run_dir=stage.path / "whole", quiet=True, **SMALL)
    # The same budget of 3,000 steps per member, but the run stops half way.
    cfg = Config(on="simulation", synchronous=True, run_dir=stage.run, **SMALL)
    launch("pbt", cfg, quiet=True, until=2500)
    half = len(read_history(stage.run))
    run = launch("pbt", cfg, resume=stage.run, quiet=True)
    check(run)
    rows = read_history(stage.run)
    assert 3 < half < len(rows)
    for member in {row.member for row in rows}:
        resumed, expected = (
            [(r.event, r.steps, r.score, r.after) for r in found if r.member == member]
            for found in (rows, read_history(whole.path))
        )
        assert resumed == expected and len(resumed) > 3
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.timeout(120)
def test_what_was_trained_after_the_last_checkpoint_of_the_population_counts(stage: Any) -> None:
    """After a crash the history is ahead of the population's checkpoint; every step is counted exactly once."""
    cfg = Config(on="simulation", run_dir=stage.run, **SMALL)
    launch("pbt", cfg, quiet=True, until=2500)
    for checkpoint in stage.run.glob("checkpoints/update-*"):
        checkpoint.rename(stage.path / checkpoint.name)
    check(launch("pbt", cfg, resume=stage.run, quiet=True))


@pytest.mark.timeout(120)
def test_a_killed_trainer_is_replaced_and_its_member_goes_on(stage: Any) -> None:
    ended = {**SMALL, "total_steps": 24_000, "interval": 4_000}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ended.items() if name != "settings"]
    process = stage.start("train", "pbt", "--run-dir", stage.run, *flags, "--settings", *SMALL["settings"])
    until(lambda: len(read_history(stage.run)) > 3, 60)
    pids = json.loads((stage.run / "topology.json").read_text())["pids"]
    os.kill(pids["trainer-1"], signal.SIGKILL)
    process.communicate(timeout=90)
    assert process.returncode == 0
    result = json.loads((stage.run / "summary.json").read_text())
    assert result["restarts"] == 1 and result["dropped"]["partial_segments"] == 1
    assert result["env_steps"] == sum(member.steps for member in members(stage.run).values()) >= 24_000


@pytest.mark.timeout(120)
def test_interrupted_and_resumed_on_local(stage: Any) -> None:
    ended = {**SMALL, "total_steps": 1_000_000, "interval": 500_000, "report_every": 0.02}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ended.items() if name != "settings"]
    process = stage.start("train", "pbt", "--run-dir", stage.run, *flags, "--settings", *SMALL["settings"])
    until(lambda: sum(file.read_text().count("\n") > 3 for file in stage.run.glob("members/*/metrics.jsonl")) == 2, 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    kept = list(stage.run.glob("members/*/checkpoints/update-*"))
    assert len(kept) == 2, "the unfinished interval of each member"
    assert main(["resume", str(stage.run), "--total-steps", "4000", "--on", "simulation"]) == 0
    assert json.loads((stage.run / "summary.json").read_text())["exit_reason"] == "total_steps"


@pytest.mark.timeout(120)
def test_members_with_processes_of_their_own(stage: Any) -> None:
    small = {**SMALL, "population": 1, "total_steps": 1000}
    run = train("pbt", on="local", member_on="local", run_dir=stage.run, quiet=True, **small)
    assert run.summary["exit_reason"] == "total_steps" and run.summary["restarts"] == 0
    assert "pids" in (stage.run / "members" / "0-0" / "topology.json").read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["ray"])
def test_on_a_cluster(on: str, stage: Any) -> None:
    check(train("pbt", on=on, run_dir=stage.run, quiet=True, **SMALL))


def diverge(observations: Any, actions: Any) -> Any:
    """Fail to build a network."""
    raise RuntimeError("no such network")


@pytest.mark.timeout(60)
def test_a_member_that_always_fails_ends_the_run_with_its_error(stage: Any) -> None:
    from thespis.training.trained_run import RunFailed

    small = {**SMALL, "settings": (f"network.factory={__file__}::diverge",)}
    with pytest.raises(RunFailed, match="failed . times in a row: .*no such network"):
        train("pbt", on="simulation", run_dir=stage.run, quiet=True, **{**small, "eval_episodes": 0})
    assert sum(row.event == "redraw" for row in read_history(stage.run)) > 0


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        (
            "--tune optimizer.rate uniform 0 1",
            "no setting 'optimizer.rate' to tune; choose unroll_length",
        ),
        ("--member nobody", "unknown architecture 'nobody'"),
        ("--member pbt", "a member cannot be a population"),
        ("--settings seed=3", "give --seed instead"),
        ("--settings unroll=3", "unknown setting 'unroll'"),
        ("--share 0.7", "at most 0.5"),
        ("--slots 0", "--slots is 0; give at least 1"),
        ("--member-on ray", "--member-on ray needs --on ray"),
        ("--member dqn --env Pendulum-v1", "Discrete"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(flags: str, result: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "pbt", "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and result in err
    assert not stage.run.exists()


def test_more_members_than_memory(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thespis.population.memory.available_memory", lambda: 2 << 30)
    with pytest.raises(ThespisError, match="8 members at a time need about .* GB .* give --slots 6"):
        train("pbt", population=8, slots=8, run_dir=stage.run)
    with pytest.raises(ThespisError, match="1 members at a time"):
        train("pbt", member="dqn", population=8, slots=1, run_dir=stage.run, settings=("replay.capacity=200000000",))
    assert not stage.run.exists()


def test_tune_may_be_given_several_times() -> None:
    from thespis.cli.train import parse_settings

    flags = "--tune entropy_cost uniform 0 0.1 --population 3 --tune optimizer.learning_rate log-uniform 1e-4 1e-2"
    cfg = parse_settings("pbt", flags.split())
    assert isinstance(cfg, Config) and cfg.population == 3
    assert list(cfg.priors) == ["entropy_cost", "optimizer.learning_rate"]
