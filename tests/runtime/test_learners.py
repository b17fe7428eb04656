"""Several learners as a run: they stay equal, survive each other, and continue from a checkpoint in any number."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stage, newest, until
from safetensors.numpy import load_file

from thespis import train
from thespis.core.errors import ThespisError
from thespis.core.types import Array, Version
from thespis.exchange import all_reduce
from thespis.roles import Learner
from thespis.runs.checkpoints import read_meta, weights_sha256
from thespis.training.resume import resume
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(600)
SMALL = {"on": "simulation", "actors": 3, "learners": 3, "envs_per_actor": 4, "total_steps": 6_000, "eval_episodes": 0}
FOUR = {"learners": 4, "actors": 4}
SLOWLY = """
work: {env_step: {base: [3.0e-3, 5.0e-3]}, learn: {base: 5.0e-3}}
edges: {default: {latency: 1.0e-3, bandwidth: 1.25e9}}
start: [0, 0.4]
"""
"""The actors are the bottleneck, and do not finish their unrolls at the same time."""
SEQUENCES = {
    "unroll_length": 5, "sequence_length": 10, "burn_in": 3, "batch": 8, "target_period": 20, "demo_ratio": 0.25,
    "replay": {"warm_up": 40, "samples_per_insert": 4.0, "capacity": 1000},
}  # fmt: skip
STATEFUL = {
    "network": {"hidden": [16], "lstm": 8, "normalize_observations": True},
    "reward": {"kind": "none", "normalize": True},
    "optimizer": {"kind": "rmsprop", "anneal": True},
}


def simulate(path: Path, architecture: str = "impala", **settings: Any) -> TrainedRun:
    return train(architecture, quiet=True, run_dir=path, **{**SMALL, **settings})


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("update-*"))


def updates(checkpoint: Path, learner: int) -> int:
    return int(json.loads((checkpoint / f"learner-{learner}.json").read_text())["updates"])


def digest(checkpoint: Path, learner: int) -> str:
    arrays = load_file(checkpoint / f"learner-{learner}.safetensors")
    return weights_sha256({name: array for name, array in arrays.items() if not name.endswith("/seconds")})


def assert_equal(checkpoint: Path, learners: int) -> None:
    """Learners that have made the same number of updates have equal weights, statistics and optimiser states."""
    states = {(updates(checkpoint, learner), digest(checkpoint, learner)) for learner in range(learners)}
    assert len(states) == len({made for made, _ in states})


def counters(path: Path) -> dict[str, int]:
    found: dict[str, int] = read_meta(newest(path))["monitor"]["counters"]
    return found


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("impala", STATEFUL),
        ("impala", {"algorithm": "appo"}),
        ("ppo", {"reward": {"normalize": True}, "network": {"normalize_observations": True}, "epochs": 2}),
        ("seed", {}),
        ("seed", {"algorithm": "ppo", "epochs": 2}),
        ("apex", {"replay": {"warm_up": 100}, "total_steps": 1500}),
        ("dqn", {"replay": {"warm_up": 100}, "actors": 2, "learners": 2, "total_steps": 1500}),
        ("r2d2", {"replay": {"warm_up": 20}, "total_steps": 2000}),
        ("r2d3", {"env": "thespis/Lock-v0", "actors": 2, "learners": 2, "total_steps": 800, **SEQUENCES}),
    ],
    ids=["impala", "appo", "ppo", "seed", "seed-ppo", "apex", "dqn", "r2d2", "r2d3"],
)
def test_learners_stay_equal_and_a_seed_gives_one_result(
    architecture: str, settings: dict[str, Any], stage: Stage
) -> None:
    runs = [simulate(stage.path / name, architecture, **settings) for name in "ab"]
    one, two = (run.summary["weights_sha256"] for run in runs)
    assert one and one == two
    saved = newest(runs[0].path)
    learners = settings.get("learners", 3)
    assert_equal(saved, learners)
    assert min(updates(saved, learner) for learner in range(learners)) > 3
    found = counters(runs[0].path)
    assert found["updates"] == max(updates(saved, learner) for learner in range(learners)), "each counts once"
    assert not {name for name in found if name.startswith("group/")}, "no learner was lost, behind or in another state"


@pytest.mark.parametrize("learners", [2, 3])
def test_learners_have_equal_weights_after_each_of_10000_updates(learners: int, stage: Stage, monkeypatch: Any) -> None:
    hashes: dict[int, list[str]] = defaultdict(list)
    learn = Learner.learn

    async def recorded(learner: Learner, batch: Any) -> Array | None:
        priorities = await learn(learner, batch)
        hashes[learner.updates].append(weights_sha256(learner._update.weights()))
        return priorities

    monkeypatch.setattr(Learner, "learn", recorded)
    monkeypatch.setattr(all_reduce, "_DIGEST_EVERY", 1)
    settings = {"network": {"hidden": [8], "normalize_observations": True}, "optimizer": {"anneal": True}}
    settings |= {"learners": learners, "actors": learners, "envs_per_actor": 1, "unroll_length": 1}
    run = simulate(stage.run, **settings, total_steps=10_300 * learners)
    found = [hashes[update] for update in range(1, 10_001)]
    assert {len(each) for each in found} == {learners}
    assert {len(set(each)) for each in found} == {1}, "all learners have one hash after every update"
    assert len({each[0] for each in found}) == 10_000, "every update changes the weights"
    assert run.summary["learner_events"] == {}, "`diverged` counts digests that differ"
    assert_equal(newest(stage.run), learners)


def test_a_resumed_run_of_several_learners_equals_the_uninterrupted_one(stage: Stage) -> None:
    settings = {"checkpoint_every": 0.05, "keep": 100, "total_steps": 9000, **STATEFUL}
    whole = simulate(stage.path / "whole", **settings)
    saved = checkpoints(whole.path)
    assert len(saved) >= 3
    again = stage.path / "again"
    shutil.copytree(whole.path, again)
    for later in checkpoints(again)[2:]:
        shutil.rmtree(later)
    assert resume(again, quiet=True).summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize("learners", [1, 2, 5])
def test_a_run_continues_with_another_number_of_learners(learners: int, stage: Stage) -> None:
    before = simulate(stage.run)
    run = resume(stage.run, quiet=True, learners=learners, actors=5, total_steps=12_000)
    assert run.summary["exit_reason"] == "total_steps"
    first, last = checkpoints(stage.run)[-2], newest(stage.run)
    start = max(updates(first, learner) for learner in range(3))
    assert start > 0 and before.summary["weights_sha256"] != run.summary["weights_sha256"]
    for learner in range(learners):
        assert updates(last, learner) > start, "it continues from the learner with the most updates"
    assert_equal(last, learners)


def test_a_killed_learner_loads_the_state_of_another(stage: Stage, monkeypatch: Any) -> None:
    published: dict[str, list[Version]] = {}
    publish = Learner._share

    async def recorded(learner: Learner) -> None:
        published.setdefault(learner._name, []).append(learner.version)
        await publish(learner)

    monkeypatch.setattr(Learner, "_share", recorded)
    run = simulate(stage.run, faults=("kill learner 1 at 0.1",), total_steps=48_000)
    assert run.summary["exit_reason"] == "total_steps"
    found = counters(stage.run)
    assert (found["group/lost"], found["group/entered"]) == (1, 1)
    assert "dropped/repeated_gradients" not in found
    saved = newest(stage.run)
    assert_equal(saved, 3)
    counts = [updates(saved, learner) for learner in range(3)]
    assert max(counts) - min(counts) <= 1, "the replacement takes part"
    assert all(versions == sorted(versions) for versions in published.values()), "no version goes back"
    assert published["learner 1"][-1].epoch > published["learner 0"][-1].epoch
    assert found["updates"] == max(counts), "no update was lost with it"


def test_a_killed_group_forms_again_without_losing_an_update(stage: Stage) -> None:
    run = simulate(stage.run, faults=("kill group 0 at 0.1",), total_steps=24_000)
    assert run.summary["exit_reason"] == "total_steps"
    saved = newest(stage.run)
    assert_equal(saved, 3)
    assert counters(stage.run)["updates"] == max(updates(saved, learner) for learner in range(3))


def test_actors_that_wait_for_the_next_version_do_not_wait_for_a_lost_group(stage: Stage) -> None:
    run = simulate(stage.run, "ppo", faults=("kill group 0 at 0.04",), total_steps=1500, epochs=1)
    assert run.summary["exit_reason"] == "total_steps"
    assert_equal(newest(stage.run), 3)
    assert run.summary["wall_seconds"] < 10, "no learner waited for the rebuilding of a checkpoint"


def test_a_slow_learner_does_not_hold_up_the_others_with_preemption(stage: Stage) -> None:
    """One of four learners gets its experience five times slower: 0.2 of full speed becomes 3.2 / 4 = 0.8 at best."""
    costs = stage.path / "costs.yaml"
    costs.write_text(SLOWLY)
    slow = tuple(f"slow actor {actor} by 5" for actor in range(3, 16, 4))
    settings = {"actors": 16, "learners": 4, "envs_per_actor": 1, "unroll_length": 16, "network": {"hidden": [8]}}
    settings |= {"batch_unrolls": 8, "queue_capacity": 8, "cost_model": costs, "total_steps": None, "total_seconds": 4}

    def learned(name: str, **rest: Any) -> int:
        simulate(stage.path / name, **settings, **rest)
        return counters(stage.path / name)["learner/steps"]

    full, waiting = learned("full"), learned("waiting", faults=slow)
    preempted = learned("preempted", faults=slow, preempt=0.75)
    assert waiting <= 0.3 * full
    assert preempted >= 0.75 * full
    assert_equal(newest(stage.path / "preempted"), 4)
    assert counters(stage.path / "preempted")["group/preempted"] > 20


@pytest.mark.parametrize("architecture", ["ppo", "seed"])
def test_learners_with_preemption_stay_equal(architecture: str, stage: Stage) -> None:
    algorithm = {"algorithm": "ppo"} if architecture == "seed" else {}
    settings = {**algorithm, "actors": 4, "learners": 2, "preempt": 0.5, "epochs": 2, "total_steps": 3000}
    simulate(stage.run, architecture, **settings, faults=("slow actor 2 by 3",))
    assert_equal(newest(stage.run), 2)
    found = counters(stage.run)
    assert found["group/preempted"] > 1 and not {"group/lost", "group/behind", "group/diverged"} & set(found)


@pytest.mark.parametrize("architecture", ["impala", "ppo"])
def test_two_levels_send_one_message_per_node(architecture: str, stage: Stage) -> None:
    settings = {**FOUR, "total_steps": 3000, **({"epochs": 2} if architecture == "ppo" else {})}
    flat = simulate(stage.path / "flat", architecture, **settings)
    runs = [simulate(stage.path / name, architecture, **settings, learners_per_node=2) for name in "ab"]
    one, two = (run.summary["weights_sha256"] for run in runs)
    assert one == two
    assert runs[0].summary["updates"] == flat.summary["updates"] and not runs[0].summary["learner_events"]
    assert_equal(newest(runs[0].path), 4)
    arrays = [load_file(newest(run.path) / "learner-0.safetensors") for run in (flat, runs[0])]
    for name in arrays[0]:
        if name.startswith("weights/"):
            np.testing.assert_allclose(arrays[0][name], arrays[1][name], rtol=1e-3, atol=1e-5)
    between, before = runs[0].summary["edges"]["aggregator.group.combine_node"], flat.summary["edges"]
    assert 2 * between["calls"] == before["learner.group.combine"]["calls"]
    fields = 100 * between["calls"]  # of a message, beside its gradients or statistics
    assert 2 * between["bytes"] == pytest.approx(before["learner.group.combine"]["bytes"], abs=2 * fields)


@pytest.mark.parametrize("fault", ["kill aggregator 0 at 0.1", "kill learner 1 at 0.1", "kill group 0 at 0.1"])
def test_two_levels_survive_each_role(fault: str, stage: Stage) -> None:
    run = simulate(stage.run, **FOUR, learners_per_node=2, faults=(fault,), total_steps=24_000)
    assert run.summary["exit_reason"] == "total_steps"
    saved = newest(stage.run)
    assert_equal(saved, 4)
    assert counters(stage.run)["updates"] == max(updates(saved, learner) for learner in range(4))


def test_two_levels_compress_between_nodes_and_resume_to_the_bit(stage: Stage) -> None:
    settings = {**FOUR, "learners_per_node": 2, "gradients": "int8", "checkpoint_every": 0.05, "keep": 100}
    whole = simulate(stage.path / "whole", **settings, total_steps=15_000)
    edges = whole.summary["edges"]
    assert edges["aggregator.group.combine_node"]["bytes"] < edges["learner.aggregator.combine"]["bytes"] / 6
    again = stage.path / "again"
    shutil.copytree(whole.path, again)
    assert len(checkpoints(again)) >= 3
    for later in checkpoints(again)[2:]:
        shutil.rmtree(later)
    assert resume(again, quiet=True).summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_run_continues_with_other_levels(stage: Stage) -> None:
    simulate(stage.run, **FOUR, total_steps=3000)
    start = max(updates(newest(stage.run), learner) for learner in range(4))
    run = resume(stage.run, quiet=True, learners_per_node=2, total_steps=6000)
    assert run.summary["exit_reason"] == "total_steps"
    assert_equal(newest(stage.run), 4)
    assert updates(newest(stage.run), 0) > start


def test_learners_on_two_nodes_survive_their_aggregator(stage: Stage) -> None:
    words = "--actors 4 --learners 4 --learners-per-node 2 --envs-per-actor 4 --eval-episodes 0 --report-every 0.1"
    process = stage.start("train", "impala", "--run-dir", stage.run, *words.split(), "--total-steps", 10**9)

    def members() -> float:
        metrics = stage.run / "metrics.jsonl"
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        return float(json.loads(rows[-1]).get("group/learners", 0.0)) if rows else 0.0

    def pid(name: str) -> int:
        return int(json.loads((stage.run / "topology.json").read_text())["pids"][name])

    until(lambda: process.poll() is not None or members() == 4.0, 60)
    assert process.poll() is None, process.communicate()
    os.kill(pid("aggregator-1"), signal.SIGKILL)
    until(lambda: members() == 2.0, 30)  # the other node goes on
    until(lambda: members() == 4.0, 60)
    os.kill(pid("learner-3"), signal.SIGKILL)
    until(lambda: members() == 3.0, 30)
    until(lambda: members() == 4.0, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert_equal(newest(stage.run), 4)
    found = counters(stage.run)
    assert (found["group/lost"], found["group/entered"]) == (3, 3)


@pytest.mark.parametrize(("architecture", "steps", "reward"), [("impala", 40_000, 50), ("ppo", 6_000, 0)])
def test_learners_in_a_ring_learn_and_stay_equal(architecture: str, steps: int, reward: float, stage: Stage) -> None:
    """`reward`: mean return of the last episodes; a random policy has 22."""
    run = simulate(stage.run, architecture, on="local", all_reduce="gloo", total_steps=steps)
    summary = run.summary
    assert summary["exit_reason"] == "total_steps" and summary["learner_events"] == {}
    assert_equal(newest(stage.run), 3)
    assert summary["return_mean_100"] > reward
    ring, votes = (summary["edges"][f"learner.{edge}"] for edge in ("learner.all_reduce", "group.agree"))
    assert "learner.group.combine" not in summary["edges"]
    assert (
        ring["calls"] >= summary["updates"] and votes["bytes"] / votes["calls"] < 1000 < ring["bytes"] / ring["calls"]
    )
    assert "gloo" in " ".join(json.loads((stage.run / "topology.json").read_text())["notes"])


@pytest.mark.parametrize("all_reduce", ["group", "gloo"])
def test_learners_on_processes_survive_each_other(all_reduce: str, stage: Stage) -> None:
    words = f"--all-reduce {all_reduce} "
    words += "--actors 3 --learners 3 --envs-per-actor 4 --eval-episodes 1 --checkpoint-every 1 --report-every 0.1"
    process = stage.start("train", "impala", "--run-dir", stage.run, *words.split(), "--total-steps", 10**9)

    def members() -> float:
        metrics = stage.run / "metrics.jsonl"
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        return float(json.loads(rows[-1]).get("group/learners", 0.0)) if rows else 0.0

    def pid(name: str) -> int:
        return int(json.loads((stage.run / "topology.json").read_text())["pids"][name])

    until(lambda: process.poll() is not None or members() == 3.0, 60)
    assert process.poll() is None, process.communicate()
    os.kill(pid("learner-1"), signal.SIGKILL)
    until(lambda: members() == 2.0, 30)  # the others go on
    until(lambda: members() == 3.0, 60)  # and a replacement enters
    stopped = pid("learner-0")
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: members() == 2.0, 30)
    os.kill(stopped, signal.SIGCONT)
    until(lambda: members() == 3.0, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    saved = newest(stage.run)
    assert_equal(saved, 3)
    found = counters(stage.run)
    assert (found["group/lost"], found["group/entered"], found["group/timeouts"]) == (2, 2, 1)
    assert (found.get("group/ring_rebuilt", 0) >= 4) == (all_reduce == "gloo"), "without and with each of two learners"


@pytest.mark.parametrize(
    ("architecture", "settings", "says"),
    [
        ("impala", {"learners": 4, "actors": 2}, "only 2 actors to feed them"),
        ("ppo", {"learners": 2, "actors": 3}, "3 actors cannot be divided equally among --learners 2"),
        ("ppo", {"learners": 2, "actors": 4, "backups": 2}, "--backups is 2 of the actors of each learner"),
        ("ppo", {"learners": 2, "actors": 2, "target_kl": 0.1}, "--target-kl stops"),
        ("trpo", {"learners": 2, "actors": 2}, "trpo needs a single learner"),
        ("apex", {"learners": 2, "actors": 2, "replay": {"shards": 2}}, "2 replay shards for 1 actors"),
        ("impala", {"preempt": 0.5}, "give --learners"),
        ("impala", {"learners": 2, "actors": 2, "preempt": 0.6}, "means all of them; give at most 0.5"),
        ("impala", {"learners": 2, "actors": 2, "preempt": 0.5}, "a batch is a single unroll"),
        ("ppo", {"learners": 2, "actors": 4, "preempt": 0.5, "minibatches": 300}, "a batch has only 256 steps"),
        ("seed", {"learners": 2, "actors": 2, "preempt": 0.5, "algorithm": "r2d2"}, "r2d2 learns from a replay"),
        ("impala", {"learners_per_node": 2}, "--learners-per-node is for several learners"),
        ("impala", {**FOUR, "learners_per_node": 3}, "cannot be divided into nodes of 3"),
        ("impala", {**FOUR, "learners_per_node": 4}, "puts all 4 learners on one node"),
        ("impala", {**FOUR, "learners_per_node": 1}, "at least 2"),
        ("impala", {"all_reduce": "gloo"}, "--all-reduce gloo is for several learners"),
        ("apex", {**FOUR, "all_reduce": "gloo"}, "real connections, which the simulation has not"),
        ("impala", {**FOUR, "all_reduce": "gloo", "on": "local", "learners_per_node": 2}, "needs no aggregators"),
        ("ppo", {**FOUR, "all_reduce": "gloo", "on": "ray", "gradients": "int8"}, "cannot send --gradients int8"),
    ],
)
def test_what_several_learners_cannot_do_is_refused(
    architecture: str, settings: dict[str, Any], says: str, stage: Stage
) -> None:
    with pytest.raises(ThespisError, match=says):
        train(architecture, quiet=True, run_dir=stage.run, **{"on": "simulation", **settings})
    assert not stage.run.exists()
