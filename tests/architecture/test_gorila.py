"""Gorila and `parameter-server --algorithm dqn`: graphs, a few updates, filters, faults and resume."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import newest, until

from thespis import train
from thespis.architectures import gorila
from thespis.architectures.sharding import ServersConfig
from thespis.cli.main import main
from thespis.core.config import QNetworkConfig
from thespis.core.errors import ThespisError
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import TrainedRun

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "actors": 2, "envs_per_actor": 2, "unroll_length": 5, "batch": 16, "batches_per_draw": 2, "target_period": 20,
    "total_steps": 2000, "eval_episodes": 2, "eval_every": 0.0, "network": {"hidden": [16]},
    "replay": {"warm_up": 200, "samples_per_insert": 4.0, "capacity": 1000},
}  # fmt: skip


def test_bundles_stay_together_and_learners_of_one_replay_do_not() -> None:
    placed = gorila.program(gorila.Config(actors=2, servers=ServersConfig(shards=2))).processes
    assert [spec.role for spec in placed["bundle-1"]] == ["replay", "learner", "actor"]
    assert {spec.colocate for spec in placed["bundle-1"]} == {"bundle 1"}
    shared = gorila.program(gorila.Config(actors=2, learners=3, replay_mode="global"))
    assert [spec.role for spec in shared.roles] == ["server", "replay", *["learner"] * 3, *["actor"] * 2, "evaluator"]


def check(run: TrainedRun) -> None:
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["restarts"] == 0
    assert result["env_steps"] >= 2000 and result["eval_episodes"] == 2
    assert set(result["edges"]) == {"learner.server.join", "learner.server.push", "learner.replay.sample",
                                  "actor.replay.insert", "actor.server.pull", "evaluator.server.pull"}  # fmt: skip
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


def counts(run: Path, role: str) -> list[dict[str, Any]]:
    """Return the saved states of these roles, in order."""
    return [json.loads(path.read_text()) for path in sorted(newest(run).glob(f"{role}-*.json"))]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("local", {"shards": 2}),
    ("simulation", {"shards": 2, "max_delay": None, "outlier_deviations": None}),
    ("simulation", {"replay_mode": "global", "learners": 3}),
    ("local", {"replay_mode": "global", "gradients": "bfloat16"}),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("on", "settings"), CASES)
def test_a_few_updates(on: str, settings: dict[str, Any], stage: Any) -> None:
    run = train("gorila", on=on, run_dir=stage.run, quiet=True, **{**SMALL, **settings})
    check(run)
    bundled = settings.get("replay_mode") != "global"
    replays, learners = counts(stage.run, "replay"), counts(stage.run, "learner")
    assert (len(replays), len(learners)) == ((2, 2) if bundled else (1, settings.get("learners", 2)))
    error = 2 * max(4.0 * 2 * (5 + 3), 32)
    for saved in replays:  # each replay keeps its ratio, for any number of learners
        assert abs(4.0 * max(0, saved["inserted"] - 200) - saved["sampled"]) <= error
    # All steps of all replays count once; the learning rate anneals by them.
    inserted = sum(saved["inserted"] for saved in replays)
    counted = sum(saved["steps"] for saved in learners)
    assert inserted - 400 <= counted <= inserted
    # Every update is one gradient. A learner may not have counted its last gradients yet.
    updates = counts(stage.run, "server")[0]["updates"]
    assert abs(run.summary["updates"] - updates) <= 3
    stale = run.summary["dropped"].get("stale_gradients", 0)
    assert abs(sum(saved["updates"] for saved in learners) - updates) <= 6 + stale
    assert run.summary["lag"]["mean"] > 0, "others make updates in between"


@pytest.mark.timeout(120)
def test_the_server_discards_exactly_what_is_older_than_the_delay(stage: Any) -> None:
    slow = {**SMALL, "actors": 3, "on": "simulation", "faults": ("slow learner 0 by 15",), "quiet": True}
    free = train("gorila", run_dir=stage.path / "free", **{**slow, "max_delay": None}).summary
    assert free["lag"]["max"] > 8 and "stale_gradients" not in free["dropped"]
    bounded = train("gorila", run_dir=stage.path / "bounded", **{**slow, "max_delay": 3}).summary
    assert bounded["lag"]["max"] <= 3 and bounded["dropped"]["stale_gradients"] > 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_resumed_run_goes_on_from_servers_and_replays(on: str, stage: Any) -> None:
    settings = {**SMALL, "on": on, "shards": 2, "keep": 5}
    train("gorila", run_dir=stage.run, quiet=True, **settings)
    before = counts(stage.run, "server"), counts(stage.run, "replay")
    launch("gorila", defaults("gorila", None, {**settings, "total_steps": 2500}), resume=stage.run, quiet=True)
    after = counts(stage.run, "server"), counts(stage.run, "replay")
    for olds, news in zip(before, after, strict=True):
        for name in {"updates", "inserted", "sampled"} & set(olds[0]):
            # One bundle may start first and use the remaining budget; none starts at zero again.
            assert all(old[name] <= new[name] for old, new in zip(olds, news, strict=True))
            assert sum(old[name] for old in olds) < sum(new[name] for new in news)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("mode", "fault", "restarts"),
    [
        ("bundled", "kill learner 0 at 0.15", 3),  # the roles of a bundle go together
        ("bundled", "kill actor 1 at 0.1", 3),
        ("bundled", "kill server 1 at 0.15", 1),
        ("global", "kill replay 0 at 0.15", 1),
        ("global", "lose learner.server.push at 0.1", 0),
    ],
)
def test_training_goes_on_after(mode: str, fault: str, restarts: int, stage: Any) -> None:
    # Long enough for a killed role to restart before the end.
    settings = {**SMALL, "replay_mode": mode, "shards": 2, "faults": (fault,), "checkpoint_every": 0.1}
    settings["total_steps"] = 5000
    run = train("gorila", on="simulation", run_dir=stage.run, quiet=True, **settings)
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["restarts"] == restarts
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
def test_a_killed_bundle_on_processes(stage: Any) -> None:
    """A killed bundle restarts with its replay; the other one continues."""
    process = stage.start("train", "gorila", "--run-dir", stage.run, "--envs-per-actor", 2, "--eval-episodes", 0,
                          "--checkpoint-every", 0.3, "--total-steps", 20_000)  # fmt: skip
    until(lambda: list(stage.run.glob("checkpoints/update-*")))
    os.kill(json.loads((stage.run / "topology.json").read_text())["pids"]["bundle-1"], signal.SIGKILL)
    out, err = process.communicate(timeout=80)
    assert process.returncode == 0, out + err
    result = TrainedRun(stage.run).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 3)
    assert all(saved["inserted"] > 1000 for saved in counts(stage.run, "replay"))


def norm(run: TrainedRun) -> float:
    return float(np.sqrt(sum(float((value**2).sum()) for value in run.policy.network.state_dict().values())))


@pytest.mark.timeout(120)
def test_filters_contain_wrong_rewards_in_one_bundle(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One environment of one bundle pays a thousand times the reward for five steps; only the filters limit it."""
    monkeypatch.syspath_prepend(str(HERE.parent / "runtime"))
    monkeypatch.setenv("LOUD_FROM", "2000")
    same: dict[str, Any] = {
        "env": "factories::signs", "on": "simulation", "quiet": True, "actors": 2, "envs_per_actor": 4, "batch": 32,
        "n_step": 1, "discount": 0.5, "total_steps": 17_000, "eval_episodes": 20, "eval_every": 0.0,
        "replay": {"warm_up": 50, "samples_per_insert": 2.0, "capacity": 100}, "network": {"hidden": [32]},
        "target_period": 20, "epsilon_steps": 2000, "huber": 1e3, "outlier_memory": 450, "outlier_deviations": 3.0,
        "optimizer": {"kind": "sgd", "learning_rate": 0.1, "clip": 0.0},
    }  # fmt: skip
    bare = {"max_delay": None, "outlier_deviations": None}
    runs = {}
    for name, loud, filters in (("clean", 0, {}), ("filtered", 5, {}), ("bare", 5, bare)):
        monkeypatch.setenv("ONCE", str(stage.path / f"once-{name}"))
        monkeypatch.setenv("LOUD_STEPS", str(loud))
        runs[name] = train("gorila", run_dir=stage.path / name, **{**same, **filters})
        assert (stage.path / f"once-{name}").exists()
    dropped = {name: run.summary["dropped"].get("outlier_batches", 0) for name, run in runs.items()}
    assert dropped["filtered"] > dropped["clean"] and not dropped["bare"]
    returns = {name: run.summary["eval_return_mean"] for name, run in runs.items()}
    assert norm(runs["filtered"]) < 1.2 * norm(runs["clean"]) and returns["filtered"] > 9.0
    assert norm(runs["bare"]) > 10 * norm(runs["clean"]) and returns["bare"] < 7.0, "of ten; five are right by chance"


PS_CASES: list[dict[str, Any]] = [
    {"mode": "async", "shards": 2},
    {"mode": "sync"},
    {"mode": "stale", "max_staleness": 0, "shards": 2},
    {"mode": "stale", "max_staleness": 1, "when_stale": "wait"},
    {"mode": "softsync", "average": 3, "staleness_aware": True},
]
WORKERS = {name: SMALL[name] for name in ("actors", "envs_per_actor", "unroll_length", "total_steps", "eval_episodes",
                                          "eval_every")}  # fmt: skip
DQN = {name: SMALL[name] for name in SMALL if name not in WORKERS}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("on", "settings"), [*(("simulation", case) for case in PS_CASES), ("local", PS_CASES[0])], ids=str
)
def test_a_parameter_server_s_workers_learn_by_dqn(on: str, settings: dict[str, Any], stage: Any) -> None:
    run = train("parameter-server", algorithm="dqn", on=on, run_dir=stage.run, quiet=True,
                **{**DQN, **WORKERS, **settings})  # fmt: skip
    check(run)
    pushed = sum(saved["updates"] for saved in counts(stage.run, "learner"))
    result, cfg = run.summary, run.config
    refused = result["dropped"].get("stale_gradients", 0)
    assert abs(result["updates"] * cfg.quorum - pushed) <= 6 + refused
    assert bool(refused) == (settings.get("max_staleness") == 0)
    if settings["mode"] == "sync":
        assert result["lag"]["max"] == 0


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"learners": 3}, "leave off --learners"),
        ({"learners": 0, "replay_mode": "global"}, "--learners is 0"),
        ({"max_delay": -1}, "--max-delay is -1"),
        ({"shards": 0}, "--shards is 0"),
        ({"network": QNetworkConfig(normalize_observations=True)}, "needs a single learner"),
    ],
)
def test_settings_it_cannot_have(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        defaults("gorila", None, settings)


@pytest.mark.parametrize("name", ["gorila", "parameter-server --algorithm dqn"])
def test_continuous_actions_are_refused(name: str, stage: Any, capfd: Any) -> None:
    assert main(["train", *name.split(), "--run-dir", str(stage.run), "--env", "Pendulum-v1"]) == 2
    assert "need Discrete actions" in capfd.readouterr().err
