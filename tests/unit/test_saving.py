"""The insert counters of a checkpoint equal the items of its roles, although a role inserts while it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.program import Program
from thespis.runs.checkpoints import Checkpoints, read_meta, save_role
from thespis.runs.saving import ReportedItems, write_checkpoint

COUNTER = "replay/inserted"
LOST = "dropped/replay/inserted"


class Replay:
    """A role that holds items."""

    def __init__(self, ctx: Any) -> None: ...


def two_replays() -> Program:
    program = Program("test")
    for _ in range(2):
        program.at().add("replay", Replay)
    return program


def save(
    checkpoints: Checkpoints, saved: dict[int, int], received: list[int], absent: list[str], lost: int = 0
) -> dict[str, Any]:
    """Commit a checkpoint in which the replays hold what they `saved`, and return its counters.

    `received`: the reported items that the replays still have. `lost`: other reported items.
    """
    staging = checkpoints.stage()
    for shard, items in saved.items():
        save_role(staging, "replay", shard, {"items": np.zeros(items)}, {"inserted": items})
    before = {COUNTER: sum(received) + lost} | ({LOST: lost} if lost else {})
    meta = {"update": sum(received), "env_steps": 0, "score": None, "monitor": {"counters": before}}
    reported = {("replay", shard): ReportedItems(COUNTER, items) for shard, items in enumerate(received)}
    committed = write_checkpoint(checkpoints, two_replays(), staging, meta, reported, absent)
    counters: dict[str, Any] = read_meta(committed.path)["monitor"]["counters"]
    return counters


def test_items_inserted_after_the_state_was_copied_do_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, {0: 636, 1: 20}, received=[649, 20], absent=[]) == {COUNTER: 656}


def test_items_that_are_reported_after_the_checkpoint_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, {0: 50, 1: 20}, received=[40, 20], absent=[]) == {COUNTER: 70}


def test_a_replay_that_saved_and_was_restarted_from_an_older_state_meanwhile_has_not_lost_its_items(
    tmp_path: Path,
) -> None:
    """It had reported 90 items and saved 80. It restarted from a checkpoint with 50 and received 4 more."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, {0: 80, 1: 20}, received=[54, 20], absent=[], lost=40) == {COUNTER: 114, LOST: 14}


def test_items_of_an_absent_replay_are_lost_beyond_its_last_saved_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, {0: 10, 1: 5}, received=[10, 5], absent=[])
    counters = save(checkpoints, {1: 9}, received=[30, 9], absent=["replay-0"])
    assert counters == {COUNTER: 39, LOST: 20}


def test_items_of_an_absent_replay_that_never_saved_are_all_lost(tmp_path: Path) -> None:
    counters = save(Checkpoints(tmp_path, keep=2), {1: 9}, received=[30, 9], absent=["replay-0"])
    assert counters == {COUNTER: 39, LOST: 30}
