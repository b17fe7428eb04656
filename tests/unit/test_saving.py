"""The insert counters of a checkpoint equal the items of its roles, although a role inserts while it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.program import Program
from thespis.runs.checkpoints import Checkpoints, read_meta, save_role
from thespis.runs.saving import ReportedItems, write_checkpoint

COUNTER = "replay/inserted"


class Replay:
    """A role that holds items."""

    def __init__(self, ctx: Any) -> None: ...


def two_replays() -> Program:
    program = Program("test")
    for _ in range(2):
        program.at().add("replay", Replay)
    return program


def save(checkpoints: Checkpoints, saved: dict[int, int], received: list[int], absent: list[str]) -> dict[str, Any]:
    """Commit a checkpoint in which the replays hold what they `saved`, and return its counters."""
    staging = checkpoints.stage()
    for shard, items in saved.items():
        save_role(staging, "replay", shard, {"items": np.zeros(items)}, {"inserted": items})
    meta = {"update": sum(received), "env_steps": 0, "score": None, "monitor": {"counters": {COUNTER: sum(received)}}}
    reported = {("replay", shard): ReportedItems(COUNTER, items) for shard, items in enumerate(received)}
    committed = write_checkpoint(checkpoints, two_replays(), staging, meta, reported, absent)
    counters: dict[str, Any] = read_meta(committed.path)["monitor"]["counters"]
    return counters


def test_items_inserted_after_the_state_was_copied_do_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, {0: 636, 1: 20}, received=[649, 20], absent=[]) == {COUNTER: 656}


def test_a_report_that_comes_after_the_state_changes_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, {0: 50, 1: 20}, received=[40, 20], absent=[]) == {COUNTER: 60}


def test_items_of_an_absent_replay_are_lost_beyond_its_last_saved_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, {0: 10, 1: 5}, received=[10, 5], absent=[])
    counters = save(checkpoints, {1: 9}, received=[30, 9], absent=["replay-0"])
    assert counters == {COUNTER: 39, f"dropped/{COUNTER}": 20}


def test_items_of_an_absent_replay_that_never_saved_are_all_lost(tmp_path: Path) -> None:
    counters = save(Checkpoints(tmp_path, keep=2), {1: 9}, received=[30, 9], absent=["replay-0"])
    assert counters == {COUNTER: 39, f"dropped/{COUNTER}": 30}
