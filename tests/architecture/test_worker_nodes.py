"""Workers on nodes as a run: the bytes between the nodes, equal results, faults, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, until

from thespis import train
from thespis.architectures import a2c, parameter_server
from thespis.architectures.sharding import ServersConfig
from thespis.core.budget import Budget
from thespis.core.config import Experiment, OptimizerConfig
from thespis.core.edges import ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.roles import ParameterServer, PushAggregator
from thespis.runtime.placement import bundles
from thespis.training.registry import defaults
from thespis.training.resume import resume
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(120)
SMALL: dict[str, Any] = {"on": "simulation", "actors": 4, "envs_per_actor": 2, "unroll_length": 5, "eval_episodes": 0,
                         "total_steps": 1200, "network": {"hidden": [16]}}  # fmt: skip
REPLAY: dict[str, Any] = {"replay": {"warm_up": 20, "capacity": 500}, "batch": 8, "batches_per_draw": 1,
                          "total_steps": 500}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("a2c", {}),
    ("a3c", {"shards": 2, "gradients": "bfloat16"}),
    ("a3c", {"actors": 6, "workers_per_node": 3, "envs_per_actor": 1}),
    ("parameter-server", {"mode": "async", "algorithm": "vtrace"}),
    ("parameter-server", {"mode": "sync", "shards": 3}),
    ("parameter-server", {"mode": "stale", "max_staleness": 1}),
    ("parameter-server", {"mode": "stale", "when_stale": "wait"}),
    ("parameter-server", {"mode": "softsync", "average": 2, "staleness_aware": True}),
    ("parameter-server", {"algorithm": "dqn", **REPLAY}),
    ("gorila", REPLAY),
    ("gorila", {"replay_mode": "global", "actors": 2, "learners": 4, **REPLAY}),
]


def simulate(path: Path, architecture: str = "a2c", **settings: Any) -> TrainedRun:
    return train(architecture, quiet=True, run_dir=path, **{**SMALL, "workers_per_node": 2, **settings})


def pushes(run: TrainedRun, caller: str, service: str) -> dict[str, int]:
    found: dict[str, int] = run.summary["edges"][f"{caller}.{service}.push"]
    return found


@pytest.mark.parametrize(("architecture", "settings"), CASES)
def test_workers_push_one_gradient_per_node(architecture: str, settings: dict[str, Any], stage: Stage) -> None:
    runs = [simulate(stage.path / name, architecture, **settings) for name in "ab"]
    one, two = (run.summary["weights_sha256"] for run in runs)
    assert one and one == two, "a seed gives one result"
    result, caller = runs[0].summary, "learner" if "replay" in settings else "worker"
    assert result["exit_reason"] == "total_steps" and result["updates"] > 10
    assert result["restarts"] == 0 and not result["learner_events"]
    assert set(result["dropped"]) <= {"stale_gradients"}
    between, within = pushes(runs[0], "aggregator", "server"), pushes(runs[0], caller, "aggregator")
    size, shards = settings.get("workers_per_node", 2), settings.get("shards", 1)
    assert abs(within["calls"] * shards - between["calls"] * size) <= size * shards, "all but those under way"
    assert not any(edge.startswith((f"{caller}.server", "bundle")) for edge in result["edges"])
    if settings.get("replay_mode") != "global":
        assert "actor.server.pull" not in result["edges"], "an actor of a node pulls from its aggregator"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_bytes_between_nodes_are_divided_by_the_workers_of_a_node(size: int, shards: int, stage: Stage) -> None:
    """Every message is as long as one of a worker, so the bytes are divided exactly, in both directions."""
    flat, nodes = (
        simulate(stage.path / f"{level}", actors=6, shards=shards, workers_per_node=level) for level in (None, size)
    )
    assert flat.summary["updates"] == nodes.summary["updates"] > 10
    for method in ("join", "push"):
        one, two = (
            flat.summary["edges"][f"worker.server.{method}"],
            nodes.summary["edges"][f"aggregator.server.{method}"],
        )
        assert {name: number / size for name, number in one.items()} == two
    assert pushes(nodes, "worker", "aggregator")["calls"] == 6 * nodes.summary["updates"]


@pytest.mark.parametrize(
    ("architecture", "fault"),
    [("a2c", "worker 1"), ("a2c", "aggregator 0"), ("a2c", "server 1"), ("a3c", "worker 1"), ("a3c", "aggregator 0")],
)
def test_training_goes_on_after_the_end_of(architecture: str, fault: str, stage: Stage) -> None:
    settings = {"shards": 2, "total_steps": None, "total_seconds": 1.2, "checkpoint_every": 0.2}
    run = simulate(stage.run, architecture, faults=(f"kill {fault} at 0.3",), **settings)
    result = run.summary
    assert (result["exit_reason"], result["restarts"]) == ("total_seconds", 1)
    role = fault.split()[0]
    assert result["learner_events"] == ({"lost": 1} if role == "worker" else {})
    assert set(result["dropped"]) <= {"stray_gradients", "late_gradients", "sampled_batches"}
    within, between = pushes(run, "worker", "aggregator"), pushes(run, "aggregator", "server")
    assert within["calls"] > 0.86 * between["calls"], "a new worker takes part; without one it would be 0.81"


def test_a_round_does_not_wait_for_a_worker_that_restarts(stage: Stage) -> None:
    """A2C without nodes waits for the new process, half a second; a node goes on with its other workers."""
    settings = {"total_seconds": 1.0, "total_steps": None, "faults": ("kill worker 1 at 0.3",)}
    waiting, node = (simulate(stage.path / f"{size}", workers_per_node=size, **settings) for size in (None, 2))
    assert node.summary["updates"] > 1.4 * waiting.summary["updates"]


def test_bundles_survive_one_of_them(stage: Stage) -> None:
    run = simulate(stage.run, "gorila", **{**REPLAY, "total_steps": 1500}, faults=("kill learner 1 at 0.05",))
    assert (run.summary["exit_reason"], run.summary["learner_events"]) == ("total_steps", {"lost": 1})


@pytest.mark.parametrize("architecture", ["a2c", "a3c"])
def test_lost_and_late_replies_are_not_applied_twice(architecture: str, stage: Stage) -> None:
    faults = ("lose worker.aggregator.push at 0.05", "lose aggregator.server.push at 0.1")
    run = simulate(stage.run, architecture, faults=faults, total_steps=3000)
    assert run.summary["exit_reason"] == "total_steps" and run.summary["updates"] > 10


def test_a_resumed_run_equals_the_uninterrupted_one(stage: Stage) -> None:
    """The aggregators' error memories are part of the checkpoint."""
    settings = {"gradients": "topk", "gradients_share": 0.1, "shards": 2, "checkpoint_every": 0.05, "keep": 100}
    whole = simulate(stage.path / "whole", "a3c", **settings, total_steps=3000)
    saved = sorted((whole.path / "checkpoints").glob("update-*"))
    assert len(saved) > 2 and (saved[1] / "aggregator-1.safetensors").exists()
    shutil.copytree(whole.path, stage.path / "again")
    for later in saved[2:]:
        shutil.rmtree(stage.path / "again" / "checkpoints" / later.name)
    again = resume(stage.path / "again", quiet=True)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize(("before", "after"), [(None, 2), (2, None)])
def test_a_run_continues_with_other_levels(before: int | None, after: int | None, stage: Stage) -> None:
    first = simulate(stage.run, workers_per_node=before)
    run = resume(stage.run, quiet=True, workers_per_node=after, total_steps=3000)
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["updates"] > first.summary["updates"] + 10


def test_workers_on_nodes_survive_one_that_is_killed_and_one_that_is_stopped(stage: Stage) -> None:
    words = "--actors 4 --workers-per-node 2 --envs-per-actor 2 --eval-episodes 0 --report-every 0.1 --worker-timeout 1"
    process = stage.start("train", "a2c", "--run-dir", stage.run, *words.split(), "--total-steps", 10**9)

    def updated() -> int:
        """Return the number of rows of metrics with an update; the servers make one when both nodes push."""
        metrics = stage.run / "metrics.jsonl"
        return metrics.read_text().count("train/learning_rate") if metrics.exists() else 0

    def pid(name: str) -> int:
        return int(json.loads((stage.run / "topology.json").read_text())["pids"].get(name, 0))

    def wait_for_updates() -> None:
        wanted = updated() + 4
        until(lambda: process.poll() is not None or updated() > wanted)
        assert process.poll() is None, process.communicate()

    wait_for_updates()
    stopped, killed = pid("worker-3"), pid("worker-0")
    os.kill(stopped, signal.SIGSTOP)
    wait_for_updates()
    os.kill(stopped, signal.SIGCONT)
    os.kill(killed, signal.SIGKILL)
    wait_for_updates()
    until(lambda: process.poll() is not None or pid("worker-0") not in (killed, 0))
    wait_for_updates()
    process.terminate()
    _, err = process.communicate(timeout=60)
    result = TrainedRun(stage.run).summary
    assert (result["exit_reason"], result["restarts"]) == ("interrupted", 1), err
    assert result["learner_events"]["timeouts"] >= 1 and result["learner_events"]["lost"] >= 1


def test_the_workers_of_a_node_are_placed_together_with_their_aggregator() -> None:
    placed = bundles(a2c.program(a2c.Config(actors=4, servers=ServersConfig(workers_per_node=2))), Experiment(on="ray"))
    assert [(each.processes, each.cpus, each.strategy) for each in placed[1:3]] == [
        (("aggregator-0", "worker-0", "worker-1"), 2.0, "SPREAD"),
        (("aggregator-1", "worker-2", "worker-3"), 2.0, "SPREAD"),
    ]
    settings = {"actors": 4, "workers_per_node": 2, "algorithm": "dqn"}
    cfg: Any = defaults("parameter-server", "CartPole-v1", settings)
    placed = bundles(parameter_server.program(cfg), Experiment(on="ray"))
    assert placed[1].processes == ("aggregator-0", "bundle-0", "bundle-1")


@pytest.mark.parametrize(
    ("architecture", "settings", "says"),
    [
        ("a2c", {"workers_per_node": 3}, "4 workers cannot be divided into nodes of 3; use a multiple of 3"),
        ("a2c", {"workers_per_node": 4}, "puts all 4 workers on one node"),
        ("a2c", {"workers_per_node": 1}, "at least 2"),
        ("a2c", {"backups": 2}, "4 workers are only 2 nodes; give at most --backups 1"),
        ("parameter-server", {"backups": 3, "mode": "sync"}, "give at most --backups 1"),
        ("parameter-server", {"algorithm": "dqn", "actors": 3}, "3 workers cannot be divided"),
        ("gorila", {"actors": 2}, "puts all 2 workers on one node"),
        ("gorila", {"replay_mode": "global", "learners": 3}, "3 workers cannot be divided"),
        ("a3c", {"hogwild": True, "on": "local"}, "--hogwild runs on one machine"),
        ("a3c", {"on": "ray", "actors_per_node": 2}, "leave off --actors-per-node"),
        ("a3c", {"workers_per_node": None, "worker_timeout": 1.0}, "--worker-timeout is for --workers-per-node"),
        ("a3c", {"gradients": "powersgd", "gradients_rank": 90}, "of rank 90 compresses no layer"),
    ],
)
def test_what_nodes_cannot_do_is_refused(architecture: str, settings: dict[str, Any], says: str, stage: Stage) -> None:
    with pytest.raises(ThespisError, match=says):
        simulate(stage.run, architecture, **settings)


@pytest.mark.parametrize(
    ("workers", "complaint"), [(1, "fewer than 2 workers push to it"), (3, "waits for 2 workers, but 3 push to it")]
)
def test_an_aggregator_of_too_few_or_too_many_workers_is_refused(workers: int, complaint: str) -> None:
    p = Program("test")
    server = p.at().add("server", ParameterServer, optimizer=OptimizerConfig(), budget=Budget(100))
    edges: Any = ServerEdges((server.edge(ParameterServer.join),), (server.edge(ParameterServer.push),))
    node = p.at().add("aggregator", PushAggregator, edges, workers=2, timeout=1.0)
    for _ in range(workers):
        p.at().add("worker", lambda ctx, push: None, node.edge(PushAggregator.push))
    with pytest.raises(ThespisError, match=complaint):
        p.check()
