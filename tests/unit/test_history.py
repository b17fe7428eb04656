"""The history of a population and the runs of its members: the files are complete, and are the whole state."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thespis.architectures.impala import Config
from thespis.core.system import commit
from thespis.population.history import HISTORY_FILE, History, HistoryRow, Reached, read_history
from thespis.population.member_runs import MemberRuns
from thespis.population.plot import ancestors, describe_ancestry, draw_ancestry
from thespis.runs.checkpoints import Checkpoints, save_role

SLOW, QUICK = {"optimizer.learning_rate": 1e-5}, {"optimizer.learning_rate": 1e-2}
ROWS = [
    HistoryRow("start", 0.0, 0, "0-0", after=SLOW),
    HistoryRow("start", 0.0, 1, "1-0", after=QUICK),
    HistoryRow("ready", 1.0, 1, "1-0", 110, 50.0, before=QUICK, after=QUICK, reached=Reached(110, 11, 4, 0.5)),
    HistoryRow("ready", 1.2, 0, "0-0", 100, 20.0, before=SLOW, after=SLOW, reached=Reached(100, 10, 5, 0.4)),
    HistoryRow("copy", 1.2, 0, "0-1", 100, 20.0, 1, "update-000000011", SLOW, QUICK, Reached(110, 11, 4, 0.5)),
    HistoryRow("ready", 2.0, 0, "0-1", 203, 60.0, before=QUICK, after=QUICK, reached=Reached(213, 21, 6, 0.9)),
]


def test_members_are_what_the_lines_add_up_to(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(ROWS[:2])
    history.add(ROWS[2:5])
    copied = history.members[0]
    assert (copied.run, copied.hypers, copied.steps, copied.score) == ("0-1", QUICK, 100, None)
    history.add(ROWS[5:])
    again = History(tmp_path)
    assert again.rows == read_history(tmp_path) == ROWS
    assert again.members == history.members
    assert (again.members[0].steps, again.members[0].updates) == (203, 20), "its own steps, not the copied ones"
    line = json.loads((tmp_path / HISTORY_FILE).read_text().splitlines()[4])
    assert (line["member"], line["from"], line["return"]) == (0, 1, 20.0)
    assert (line["before"], line["after"]) == (SLOW, QUICK)


def test_a_torn_line_never_happened(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(ROWS[:3])
    with (tmp_path / HISTORY_FILE).open("ab") as file:
        file.write(b'{"event": "copy", "mem')
    again = History(tmp_path)
    again.add(ROWS[3:4])
    assert read_history(tmp_path) == ROWS[:4]


def test_failures_in_a_row_are_counted(tmp_path: Path) -> None:
    history = History(tmp_path)
    failed = HistoryRow("ready", 1.0, 0, "0-0", error="boom", after=SLOW)
    history.add([ROWS[0], failed, failed])
    assert history.members[0].failures == 2
    history.add([ROWS[3]])
    assert history.members[0].failures == 0


def test_ancestors_and_the_picture(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(ROWS)
    assert ancestors(ROWS, 0) == [0, 1] and ancestors(ROWS, 1) == [1]
    assert describe_ancestry(tmp_path) == [
        "  member 0 leads with 60: optimizer.learning_rate 0.01",
        "  its ancestors: 0 < 1; copies in total: 1",
    ]
    assert draw_ancestry(tmp_path).strip() == str(tmp_path / "ancestry.png")
    assert (tmp_path / "ancestry.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert draw_ancestry(tmp_path) == '  no plot of the population: pip install "thespis[plots]"'
    assert not (tmp_path / "ancestry.png").exists()


@pytest.fixture
def members(tmp_path: Path) -> MemberRuns:
    """The run of member 0, with two checkpoints."""
    made = MemberRuns(tmp_path / "members", "impala", Config())
    checkpoints = Checkpoints(made.path("0-0") / "checkpoints", keep=2)
    for update in (1, 2):
        staging = checkpoints.stage()
        save_role(staging, "learner", 0, {"weights/w": np.full(3, update, np.float32)}, {"updates": update})
        monitor = {"episodes": 7, "window": [], "counters": {}}
        checkpoints.commit(staging, {"update": update, "env_steps": 10 * update, "time": 0.1, "monitor": monitor})
    (made.path("0-0") / "checkpoints" / "epoch-learner.json").write_text('{"epoch": 4}')
    return made


def test_a_copy_is_the_same_to_the_bit_and_has_its_own_settings(members: MemberRuns) -> None:
    assert members.fork("0-0", "1-1", QUICK) == (Reached(20, 2, 7, 0.1), "update-000000002")
    there, here = members.checkpoint("0-0"), members.checkpoint("1-1")
    assert there is not None and here is not None
    assert {f.name: f.read_bytes() for f in there.iterdir()} == {f.name: f.read_bytes() for f in here.iterdir()}
    assert json.loads((here.parent / "epoch-learner.json").read_text()) == {"epoch": 4}
    assert "learning_rate: 0.01" in (members.path("1-1") / "config.yaml").read_text()
    assert members.begun("1-1")
    members.retire("0-0")
    weights = members.weights("1-1")
    assert weights is not None and weights["w"].tolist() == [2, 2, 2], "the copy does not need the original"


def test_no_two_runs_share_a_seed(members: MemberRuns) -> None:
    seeds = [members.config(f"{member}-{branch}", SLOW).seed for member in range(8) for branch in range(4)]
    assert len(set(seeds)) == 32


def test_killed_anywhere_a_copy_is_whole_or_not_there(members: MemberRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails from its n-th call on, for every n."""
    killed, number = True, 0
    while killed:
        number += 1
        with monkeypatch.context() as patch:
            calls = _die_at(patch, number)
            with suppress(KeyboardInterrupt):
                members.fork("0-0", "1-1", QUICK)
            killed = next(calls) > number
        assert members.path("1-1").exists() or killed
        if members.path("1-1").exists():
            found = members.checkpoint("1-1")
            assert found is not None and members.begun("1-1")
            commit.verify(found)
        members.clear("1-1")
        commit.sweep(members.root)
    assert number > 10


def _die_at(patch: pytest.MonkeyPatch, number: int) -> Iterator[int]:
    calls = itertools.count(1)
    for owner, name in ((os, "link"), (os, "rename"), (os, "fsync"), (os, "open"), (shutil, "rmtree")):
        patch.setattr(owner, name, partial(_touch, getattr(owner, name), calls, number))
    return calls


def _touch(real: Any, calls: Iterator[int], number: int, *args: Any, **more: Any) -> Any:
    if next(calls) >= number:
        raise KeyboardInterrupt
    return real(*args, **more)
