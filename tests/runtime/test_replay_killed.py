"""A killed replay: it restarts from its checkpoint, and in every checkpoint the lost items are counted exactly."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, until

pytestmark = pytest.mark.timeout(400)
FLAGS = """--actors 2 --envs-per-actor 2 --unroll-length 5 --batch 16 --eval-episodes 0 --total-steps 1000000000
 --replay.warm-up 200 --replay.capacity 100000 --checkpoint-every 2 --keep 50 --report-every 0.1"""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("update-*"), key=lambda path: path.stat().st_mtime)


def beyond(run: Path) -> int:
    """Return the reported steps since the newest checkpoint."""
    saved = checkpoints(run)
    if not saved:
        return 0
    row = (run / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()[-1]
    return int(json.loads(row)["step"]) - int(read(saved[-1] / "meta.json")["env_steps"])


def lost_items(checkpoint: Path, shards: int) -> int:
    """Return the lost items of a checkpoint; check that the others are stored."""
    counters = read(checkpoint / "meta.json")["monitor"]["counters"]
    lost = int(counters.get("dropped/replay/inserted", 0))
    there = [read(checkpoint / f"replay-{shard}.json")["inserted"] for shard in range(shards)]
    assert counters["replay/inserted"] - lost == sum(there), checkpoint.name
    return lost


def kill_and_wait(process: Any, run: Path, killed: str) -> None:
    """Kill a replay between two checkpoints; return when a checkpoint of its next incarnation exists."""
    log, resumed = run / "log.txt", f"{killed} resumes from update-"
    until(lambda: process.poll() is not None or beyond(run) > 100, 100)
    assert process.poll() is None, process.communicate()
    before = log.read_text().count(resumed)
    os.kill(int(read(run / "topology.json")["pids"][killed]), signal.SIGKILL)
    until(lambda: log.read_text().count(resumed) > before, 100)
    saved = checkpoints(run)[-1]
    until(lambda: checkpoints(run)[-1] != saved and beyond(run) > 0, 100)


@pytest.mark.parametrize(("shards", "killed"), [(1, "storage"), (2, "replay-1")])
def test_a_killed_replay_loses_what_its_checkpoint_has_not(shards: int, killed: str, stage: Stage) -> None:
    process = stage.start("train", "apex", "--run-dir", stage.run, *FLAGS.split(), "--replay.shards", shards)
    kills = 0
    while True:
        kill_and_wait(process, stage.run, killed)
        kills += 1
        lost = lost_items(checkpoints(stage.run)[-1], shards)
        if lost or kills == 3:  # a kill at the moment of a checkpoint loses nothing
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    result = read(stage.run / "summary.json")
    roles = 2 if shards == 1 else 1
    assert result["restarts"] == kills * roles, "with one shard the weight store shares its process"
    assert lost > 0 and result["dropped"]["replay/inserted"] > 0
    for checkpoint in checkpoints(stage.run):
        lost_items(checkpoint, shards)
