"""A killed replay: it restarts with the items of its checkpoint, and the lost items are counted exactly."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, until

pytestmark = pytest.mark.timeout(120)
FLAGS = """--actors 2 --envs-per-actor 2 --unroll-length 5 --batch 16 --eval-episodes 0 --total-steps 1000000000
 --replay.warm-up 200 --replay.capacity 100000 --checkpoint-every 2 --keep 50 --report-every 0.1"""


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("update-*"), key=lambda path: path.stat().st_mtime)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def beyond(run: Path) -> int:
    """Return the reported steps since the newest checkpoint."""
    if not list((run / "checkpoints").glob("update-*")):
        return 0
    rows = (run / "metrics.jsonl").read_text().splitlines()
    return int(json.loads(rows[-1])["step"]) - int(read(newest(run) / "meta.json")["env_steps"])


@pytest.mark.parametrize(("shards", "killed"), [(1, "storage"), (2, "replay-1")])
def test_a_killed_replay_loses_what_its_checkpoint_has_not(shards: int, killed: str, stage: Stage) -> None:
    process = stage.start("train", "apex", "--run-dir", stage.run, *FLAGS.split(), "--replay.shards", shards)
    until(lambda: process.poll() is not None or beyond(stage.run) > 100, 60)
    assert process.poll() is None, process.communicate()
    os.kill(int(read(stage.run / "topology.json")["pids"][killed]), signal.SIGKILL)
    log = stage.run / "log.txt"
    until(lambda: f"{killed} resumes from update-" in log.read_text(), 60)
    saved = newest(stage.run)
    until(lambda: newest(stage.run) != saved and beyond(stage.run) > 0, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    result = read(stage.run / "summary.json")
    assert result["restarts"] == (2 if shards == 1 else 1), "with one shard the weight store shares its process"
    lost = result["dropped"]["replay/inserted"]
    assert lost > 0
    # In every shard, the inserted items are the lost items plus the stored items.
    inserted = read(newest(stage.run) / "meta.json")["monitor"]["counters"]["replay/inserted"]
    there = [read(newest(stage.run) / f"replay-{shard}.json")["inserted"] for shard in range(shards)]
    assert inserted - lost == sum(there)
