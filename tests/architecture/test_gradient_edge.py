"""a3c, a2c and parameter-server: graphs, a few updates under every runtime, faults, and equal results."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
from typing import Any

import numpy as np
import pytest
import torch
from conftest import until

from thespis import resume, train
from thespis.cli.main import main
from thespis.core.errors import ThespisError
from thespis.core.payloads import CompressedGradient
from thespis.exchange.codecs import cut_sections
from thespis.runs.checkpoints import Checkpoints, load_role, weights_sha256
from thespis.runtime.cost_model import message_bytes
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import TrainedRun

NAMES = ["a2c", "a3c", "parameter-server"]
SMALL: dict[str, Any] = {"actors": 3, "envs_per_actor": 2, "unroll_length": 5, "total_steps": 1500, "eval_episodes": 2,
                         "eval_every": 0.0, "quiet": True}  # fmt: skip


def digest(run: TrainedRun) -> str:
    return weights_sha256({name: value.numpy() for name, value in run.policy.network.state_dict().items()})


def test_names_are_listed_as_they_are_typed(capsys: Any) -> None:
    assert main(["list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert set(NAMES) <= set(listed)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("a2c", {"shards": 2}),
    ("a3c", {"shards": 2, "gradients": "bfloat16"}),
    ("a3c", {"envs_per_actor": 1, "network": {"lstm": 8}}),
    ("parameter-server", {"mode": "async", "algorithm": "vtrace"}),
    ("parameter-server", {"mode": "sync", "backups": 1}),
    ("parameter-server", {"mode": "stale", "max_staleness": 1}),
    ("parameter-server", {"mode": "stale", "when_stale": "wait", "shards": 3}),
    ("parameter-server", {"mode": "softsync", "average": 3, "staleness_aware": True}),
]


def check(run: TrainedRun) -> None:
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["env_steps"] >= 1500 and result["updates"] > 10
    assert result["eval_episodes"] == 2 and result["eval_return_mean"] > 0
    assert result["restarts"] == 0
    assert set(result["edges"]) == {"worker.server.join", "worker.server.push", "evaluator.server.pull"}
    assert result["lag"]["mean"] >= 0
    weights = run.policy.network.state_dict()
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_few_updates_simulated(name: str, settings: dict[str, Any], stage: Any) -> None:
    run = train(name, on="simulation", run_dir=stage.run, **{**SMALL, **settings})
    check(run)
    dropped = set(run.summary["dropped"])
    if settings.get("backups"):
        assert dropped == {"late_gradients"}
    elif settings.get("max_staleness") == 1 and settings.get("when_stale") is None:
        assert dropped == {"stale_gradients"} and run.summary["lag"]["max"] == 1
    else:
        assert dropped == set()
    if name == "a2c":
        assert run.summary["lag"]["max"] == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "settings"), [CASES[0], CASES[1]])
def test_a_few_updates_on_processes(name: str, settings: dict[str, Any], stage: Any) -> None:
    check(train(name, on="local", run_dir=stage.run, **{**SMALL, **settings}))


@pytest.mark.timeout(120)
def test_one_worker_is_a3c_and_a2c_alike(stage: Any) -> None:
    """Episodes are shorter than unrolls here, so the rule for the end of an unroll matters."""
    same: dict[str, Any] = {**SMALL, "actors": 1, "envs_per_actor": 1, "unroll_length": 40, "total_steps": 4000,
                            "on": "simulation", "optimizer": {"kind": "rmsprop", "epsilon": 1e-5}}  # fmt: skip
    a2c = train("a2c", run_dir=stage.path / "a2c", **same)
    a3c = train("a3c", run_dir=stage.path / "a3c", end_with_episode=False, **same)
    assert a2c.summary["updates"] == a3c.summary["updates"] > 50
    assert digest(a2c) == digest(a3c)
    cut = train("a3c", run_dir=stage.path / "cut", **same)
    assert cut.summary["updates"] > 1.5 * a3c.summary["updates"], "unrolls end with episodes"
    assert cut.summary["eval_return_mean"] is not None


@pytest.mark.timeout(120)
def test_shards_change_nothing_in_lock_step(stage: Any) -> None:
    runs = [
        train("a2c", run_dir=stage.path / f"{shards}", on="simulation", shards=shards, **SMALL) for shards in (1, 3)
    ]
    assert digest(runs[0]) == digest(runs[1])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["a3c", "a2c"])
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, stage: Any) -> None:
    settings = {**SMALL, "on": "simulation", "shards": 2, "checkpoint_every": 0.05, "keep": 100}
    quiet = settings.pop("quiet")
    whole = train(name, run_dir=stage.path / "whole", quiet=quiet, **settings)
    saved = sorted((whole.path / "checkpoints").glob("update-*"))
    assert len(saved) > 2, "there was no checkpoint"
    shutil.copytree(whole.path, stage.path / "again")
    for later in saved[1:]:
        shutil.rmtree(stage.path / "again" / "checkpoints" / later.name)
    again = launch(name, defaults(name, "CartPole-v1", settings), resume=stage.path / "again", quiet=True)
    assert again.summary["updates"] == whole.summary["updates"]
    assert digest(again) == digest(whole)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("a3c", ("kill server 1 at 0.15", "kill worker 0 at 0.2")),
        ("a2c", ("kill server 0 at 0.15", "kill worker 1 at 0.75")),
        ("a3c", ("kill server 0 at 0.001",)),
        ("a2c", ("lose worker.server.push at 0.05", "lose worker.server.join at 0")),
        ("parameter-server", ("slow worker 0 by 20", "kill server 1 at 0.15")),
    ],
)
def test_training_goes_on_after(name: str, faults: tuple[str, ...], stage: Any) -> None:
    run = train(name, on="simulation", run_dir=stage.run, shards=2, faults=faults,
                **{**SMALL, "total_steps": 8000, "checkpoint_every": 0.1})  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["restarts"] == sum(fault.startswith("kill") for fault in faults)
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


@pytest.mark.timeout(120)
def test_a_slow_worker_is_stale_and_a_backup_takes_its_place(stage: Any) -> None:
    slow = {**SMALL, "on": "simulation", "total_steps": 3000, "faults": ("slow worker 0 by 15",)}
    free = train("parameter-server", run_dir=stage.path / "free", **slow).summary
    assert free["lag"]["max"] > 10
    bounded = train("parameter-server", run_dir=stage.path / "bounded", mode="stale", max_staleness=4, **slow).summary
    assert bounded["lag"]["max"] <= 4 and bounded["dropped"]["stale_gradients"] > 1
    patient = train("parameter-server", run_dir=stage.path / "patient", mode="stale", max_staleness=1,
                    when_stale="wait", **slow).summary  # fmt: skip
    assert patient["lag"]["max"] <= 2 * 3 and not patient["dropped"], "two others, three pushes each"
    together = train("a2c", run_dir=stage.path / "together", **slow).summary
    backed = train("a2c", run_dir=stage.path / "backed", backups=1, **slow).summary
    assert backed["wall_seconds"] < 0.3 * together["wall_seconds"]
    assert backed["dropped"]["late_gradients"] > 1 and not together["dropped"]


@pytest.mark.timeout(120)
def test_hogwild_says_so_and_counts_every_update(stage: Any) -> None:
    settings = {**SMALL, "total_steps": 6000, "checkpoint_every": 0.3}
    run = train("a3c", on="local", hogwild=True, run_dir=stage.run, **settings)
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["dropped"] == {}
    assert set(result["edges"]) == {"worker.server.join", "evaluator.server.pull"}, "no gradient travels"
    assert result["eval_episodes"] == 2 and result["lag"]["max"] >= 0
    assert "hogwild: workers change parameters" in (stage.run / "log.txt").read_text()
    arrays, _ = load_role(Checkpoints(stage.run / "checkpoints", keep=1).newest_valid().path, "server", 0)  # type: ignore
    # The memory includes updates that a halted worker made after its last report.
    assert 0 <= arrays["updates"].sum() - result["updates"] <= 3
    assert np.isfinite(arrays["values"]).all()
    assert (arrays["optimizer/mean_square"] != 1).any(), "the statistics are shared too"
    # A worker that started after the last step takes part in the resumed run.
    for more in itertools.count(2):
        if (arrays["updates"] > 0).all():
            break
        resume(stage.run, total_steps=more * 6000, quiet=True)
        arrays, _ = load_role(Checkpoints(stage.run / "checkpoints", keep=1).newest_valid().path, "server", 0)  # type: ignore


@pytest.mark.timeout(120)
def test_who_comes_late_does_nothing(stage: Any) -> None:
    """The run may end before all workers are up: the last checkpoint holds the final state."""
    run = train("a3c", on="local", hogwild=True, run_dir=stage.run, **{**SMALL, "actors": 6, "total_steps": 200})
    arrays, _ = load_role(Checkpoints(stage.run / "checkpoints", keep=1).newest_valid().path, "server", 0)  # type: ignore
    assert 0 <= arrays["updates"].sum() - run.summary["updates"] <= 6


def test_hogwild_is_refused_where_no_memory_is_shared(stage: Any) -> None:
    with pytest.raises(ThespisError, match="use --on local, not simulation"):
        train("a3c", on="simulation", hogwild=True, run_dir=stage.run, **SMALL)
    with pytest.raises(ThespisError, match="leave off --shards"):
        train("a3c", on="local", hogwild=True, shards=2, run_dir=stage.run, **SMALL)


@pytest.mark.timeout(120)
def test_nothing_of_hogwild_is_left_when_the_parent_is_killed(stage: Any) -> None:
    """The stage checks for processes and shared memory afterwards."""
    process = stage.start("train", "a3c", "--hogwild", "--run-dir", stage.run, "--actors", 2, "--envs-per-actor", 2,
                          "--eval-episodes", 0, "--report-every", 0.1, "--total-steps", 10_000_000)  # fmt: skip
    metrics = stage.run / "metrics.jsonl"
    until(lambda: metrics.exists() and "train/" in metrics.read_text())
    process.kill()


@pytest.mark.timeout(120)
def test_a_killed_shard_on_processes(stage: Any) -> None:
    """A killed server restarts from its checkpoint, and the waiting workers continue."""
    process = stage.start("train", "a3c", "--run-dir", stage.run, "--actors", 2, "--envs-per-actor", 2, "--shards", 2,
                          "--eval-episodes", 0, "--checkpoint-every", 0.2, "--total-steps", 60_000)  # fmt: skip
    saved = until(lambda: list(stage.run.glob("checkpoints/update-*")))
    pids = json.loads((stage.run / "topology.json").read_text())["pids"]
    os.kill(pids["server-1"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    result = TrainedRun(stage.run).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 1) and saved


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backups", [0, 1])
def test_a_paused_worker(backups: int, stage: Any) -> None:
    """A barrier waits for a stopped worker and reports it; with a backup worker no role waits."""
    process = stage.start("train", "a2c", "--run-dir", stage.run, "--actors", 3, "--envs-per-actor", 2, "--backups",
                          backups, "--eval-episodes", 0, "--report-every", 0.1, "--stall-timeout", 4,
                          "--total-steps", 10_000_000)  # fmt: skip
    metrics = stage.run / "metrics.jsonl"
    until(
        lambda: metrics.exists() and sum("train/" in row for row in metrics.read_text().splitlines()) > 5
    )  # all are up
    os.kill(json.loads((stage.run / "topology.json").read_text())["pids"]["worker-1"], signal.SIGSTOP)
    if backups:
        rows = len(metrics.read_text().splitlines()) + 60  # longer than the barrier would wait
        until(lambda: process.poll() is not None or len(metrics.read_text().splitlines()) > rows)
        process.terminate()
    _, err = process.communicate(timeout=60)
    result = TrainedRun(stage.run).summary
    assert result["exit_reason"] == ("interrupted" if backups else "stalled"), err
    assert backups or "server 0 waits for a gradient of worker 1" in err


def test_half_precision_halves_the_bytes_of_a_push(stage: Any) -> None:
    sizes = []
    for dtype in ("float32", "float16", "bfloat16"):
        run = train("a2c", run_dir=stage.path / dtype, on="simulation", gradients=dtype, **SMALL)
        edge = run.summary["edges"]["worker.server.push"]
        sizes.append(edge["sent"] / edge["calls"])
    layout = [(name, list(value.shape)) for name, value in run.policy.network.state_dict().items()]
    gradient = 4 * sum(math.prod(shape) for _, shape in layout)
    sections = cut_sections(layout, slice(0, gradient // 4))
    description = message_bytes(CompressedGradient("bfloat16", 2, sections, []))
    np.testing.assert_allclose(np.diff(sizes), [description - gradient / 2, 0], atol=1.0)


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("a2c", {"backups": 3}, "use fewer backup workers"),
        ("a3c", {"network": {"normalize_observations": True}}, "needs a single learner"),
        ("a3c", {"shards": 0}, "--shards is 0"),
    ],
)
def test_what_cannot_work_is_refused(name: str, settings: dict[str, Any], complaint: str, stage: Any) -> None:
    with pytest.raises(ThespisError, match=complaint):
        train(name, on="simulation", run_dir=stage.run, **{**SMALL, **settings})
