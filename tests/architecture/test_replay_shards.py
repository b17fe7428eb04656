"""One replay in several shards: the same architectures, the same ratio, and refused settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import newest

from thespis import train
from thespis.cli.main import main
from thespis.training.registry import architecture, defaults

SMALL: dict[str, Any] = {
    "actors": 3, "envs_per_actor": 2, "unroll_length": 5, "batch": 16, "batches_per_draw": 2, "target_period": 20,
    "total_steps": 1500, "eval_episodes": 0,
    "replay": {"warm_up": 100, "samples_per_insert": 4.0, "capacity": 1200, "shards": 2},
}  # fmt: skip
SEQUENCES = {"env": "thespis/Recall-v0", "sequence_length": 10, "burn_in": 3}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "on", "extra"),
    [("dqn", "simulation", {}), ("apex", "simulation", {}), ("apex", "local", {}), ("r2d2", "simulation", SEQUENCES)],
)
def test_a_few_updates_from_two_shards(name: str, on: str, extra: dict[str, Any], stage: Any) -> None:
    """Three actors: one shard serves two of them, and batches sample both shards equally."""
    settings = {**SMALL, **extra}
    result = train(name, on=on, run_dir=stage.run, quiet=True, **settings).summary
    assert result["exit_reason"] == "total_steps" and result["updates"] > 20
    assert set(result["dropped"]) <= {"stale_priorities"}
    cfg: Any = defaults(name, settings.get("env"), settings)
    counts = [json.loads((newest(stage.run) / f"replay-{shard}.json").read_text()) for shard in range(2)]
    for count in counts:
        assert count["sampled"] > 0 and count["written"] > 0
        error = 2 * max(4.0 * cfg.algorithm.items.per_insert(cfg.envs_per_actor), 16)
        assert abs(4.0 * (count["inserted"] - 50) - count["sampled"]) <= error, "each keeps its own band"
    assert counts[0]["sampled"] == pytest.approx(counts[1]["sampled"], abs=2 * 16)
    pids = json.loads((stage.run / "topology.json").read_text())["processes"]
    assert {"replay-0", "replay-1", "storage"} <= set(pids)


@pytest.mark.timeout(60)
def test_items_can_be_limited_to_one_draw(stage: Any) -> None:
    replay = {**SMALL["replay"], "shards": 1, "sampler": "fifo", "max_times_sampled": 1, "samples_per_insert": 1.0}
    result = train("dqn", on="simulation", run_dir=stage.run, quiet=True, **{**SMALL, "replay": replay}).summary
    assert result["exit_reason"] == "total_steps" and result["dropped"] == {}
    count = json.loads((newest(stage.run) / "replay-0.json").read_text())
    assert count["inserted"] - 300 <= count["sampled"] <= count["inserted"]


@pytest.mark.parametrize(
    ("name", "flags", "what"),
    [
        ("apex", "--replay.shards 3", "3 replay shards for 2 actors"),
        ("apex", "--replay.shards 2 --batch 33", "33 is not divisible by 2"),
        ("dqn", "--replay.shards 0", "--replay.shards is 0; give at least 1"),
        ("dqn", "--replay.sampler fifo", "give --replay.max-times-sampled"),
        ("gorila", "--replay.shards 2", "--replay.shards must stay 1"),
        (
            "r2d2",  # enough capacity for three actors, but half of it is not enough for two
            "--actors 3 --replay.shards 2 --replay.capacity 1400 --replay.warm-up 100",
            "a replay of 700 steps cannot hold",
        ),
    ],
)
def test_what_cannot_work_is_refused(name: str, flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", name, "--run-dir", str(stage.run), *flags.split()]) == 2
    err = capfd.readouterr().err
    assert what in err and err.count("\n") == 1
    assert not stage.run.exists()


def test_actors_are_dealt_out_to_the_shards() -> None:
    program = architecture("apex").program(defaults("apex", None, {"actors": 5, "replay": {"shards": 2}}))
    program.check()
    inserts = [edge for spec in program.roles for edge in spec.edges if edge.method == "insert"]
    assert [edge.index for edge in inserts] == [0, 1, 0, 1, 0]
    learner = program.find("learner", 0)
    assert learner is not None
    assert [(edge.index, edge.method) for edge in learner.edges[:4]] == [
        (0, "sample"), (1, "sample"), (0, "prioritise"), (1, "prioritise"),
    ]  # fmt: skip
