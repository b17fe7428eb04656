"""The weights edge, under every runtime: a pull returns newer weights only, whichever role was restarted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_roles import FragileStore, Newcomer, Publisher, Puller, read

from thespis.core.program import Program
from thespis.core.types import Version
from thespis.roles import WeightStore

UPDATES = 15
CRASHES = [("simulation", "raise"), ("local", "raise"), ("local", "kill"), ("ray", "raise"), ("ray", "kill")]
pytestmark = pytest.mark.timeout(120)


def build(path: Path, crash_at: tuple[int, str] | None, goal: Version) -> Program:
    program = Program("weights")
    store = program.at().add("weights", WeightStore)
    once = path / "publisher.crashed"
    program.at(restarts=1).add("learner", Publisher, store.edge("publish"), UPDATES, crash_at, once)
    for index in range(2):
        program.at().add("puller", Puller, store.edge("pull"), path / f"seen-{index}", goal)
    return program


@pytest.mark.parametrize("on", ["simulation", "local", "ray"])
def test_only_newer_weights_come(on: str, perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, None, Version(0, UPDATES - 1)), on, total_steps=2)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    for index in range(2):
        seen = read(tmp_path / f"seen-{index}")
        versions = [tuple(version) for version in seen if version is not None]
        assert seen[0] is not None, "the first pull waits for the first weights"
        assert versions == sorted(set(versions))
        assert versions[-1] == (0, UPDATES - 1)
        assert seen[-1] is None, "a pull with the newest version returns nothing"


@pytest.mark.parametrize(("on", "how"), CRASHES)
def test_a_restarted_store_has_what_was_published_last(on: str, how: str, perform: Any, tmp_path: Path) -> None:
    """No role publishes again: a learner may wait for experience, and its actors for their first weights."""
    program, last = Program("weights"), UPDATES - 1
    crash: dict[str, Any] = {"crash_at": (last, how), "once": tmp_path / "store.crashed"}
    store = program.at(restarts=1).add("weights", FragileStore.fragile, **crash)
    program.at().add("learner", Publisher, store.edge("publish"), UPDATES, None, tmp_path / "unused")
    program.at().add("puller", Newcomer, store.edge("pull"), tmp_path / "seen", Version(0, last))
    outcome = perform(program, on, total_steps=2, stall_timeout=10.0)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["restarts"] == 1
    assert read(tmp_path / "seen")[-1] == [0, last]
    assert "old_weights" not in outcome.summary["dropped"]


@pytest.mark.parametrize(("on", "how"), CRASHES)
def test_a_restarted_publisher_is_newer_in_all_it_says(on: str, how: str, perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, (9, how), Version(1, UPDATES - 1)), on, total_steps=2, stall_timeout=10.0)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["restarts"] == 1
    for index in range(2):
        versions = [tuple(version) for version in read(tmp_path / f"seen-{index}") if version is not None]
        assert versions == sorted(set(versions)), "a caller received an older version"
        assert {epoch for epoch, _ in versions} == {0, 1}
        assert max(update for epoch, update in versions if epoch == 0) <= 8
