"""Checkpoints survive kills, flipped bits and full disks, and the right ones are kept."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from thespis.core.errors import ThespisError
from thespis.core.system.commit import CorruptCheckpoint, sweep, verify
from thespis.core.types import Array
from thespis.runs import checkpoints as module
from thespis.runs.checkpoints import (
    Checkpoints,
    carry_over,
    load_role,
    load_values,
    policy_weights,
    read_meta,
    save_role,
    weights_sha256,
)

ARRAYS: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.array(7, dtype=np.int64),
    "b": np.array([True, False]),
}


def save(checkpoints: Checkpoints, update: int, score: float | None = None) -> Path:
    staging = checkpoints.stage()
    save_role(staging, "learner", 0, ARRAYS, {"update": update})
    save_role(staging, "replay", 0, {"items": np.full(4, update)}, {"inserted": 4})
    return checkpoints.commit(staging, {"update": update, "env_steps": 10 * update, "score": score})


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def test_what_every_role_saved_comes_back_equal_and_writable(tmp_path: Path) -> None:
    transposed = np.arange(6, dtype=np.float64).reshape(2, 3).T
    checkpoints = Checkpoints(tmp_path, keep=2)
    staging = checkpoints.stage()
    save_role(staging, "learner", 0, {**ARRAYS, "t": transposed}, {"rng": 2**127 + 1, "x": 0.1})
    path = checkpoints.commit(staging, {"update": 1234, "return_mean_100": float("nan")})
    assert path.name == "update-000001234"
    loaded = load_role(path, "learner", 0)
    assert loaded is not None
    arrays, values = loaded
    assert values == {"rng": 2**127 + 1, "x": 0.1}
    for name, array in {**ARRAYS, "t": transposed}.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)
        arrays[name][...] = 0
    assert load_role(path, "learner", 1) is None
    assert read_meta(path) == {"update": 1234, "return_mean_100": None}


def test_newest_best_and_keep_survive_pruning(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for update, score in enumerate([None, 5.0, 9.0, float("nan"), 9.0, 1.0, 2.0, None], start=1):
        save(checkpoints, update, score)
    assert names(tmp_path) == ["update-000000005", "update-000000007", "update-000000008"]
    best = checkpoints.best_valid().path
    assert best is not None and best.name == "update-000000005"
    assert json.loads((tmp_path / "best.json").read_bytes()) == {"name": "update-000000005", "score": 9.0}
    found = checkpoints.newest_valid()
    assert found.path == tmp_path / "update-000000008" and found.skipped == []


def test_a_checkpoint_that_is_being_read_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    read = save(checkpoints, 1)
    assert checkpoints.reserve_newest("learner-0").path == read
    save(checkpoints, 2)
    assert read.exists()
    checkpoints.release("learner-0")
    save(checkpoints, 3)
    assert not read.exists()


def test_what_an_absent_role_saved_before_is_carried_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    before = save(checkpoints, 1)
    staging = checkpoints.stage()
    assert carry_over(before, staging, "learner", 0) and not carry_over(before, staging, "stranger", 0)
    after = checkpoints.commit(staging, {"update": 2})
    assert not before.exists()
    verify(after)
    assert load_role(after, "learner", 0) is not None


def test_without_scores_there_is_no_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.newest_valid().path is None and checkpoints.best_valid().path is None
    save(checkpoints, 1)
    assert checkpoints.best_valid().path is None and not (tmp_path / "best.json").exists()


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_a_second_commit_at_an_update_is_the_newer_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    first, second = save(checkpoints, 5), save(checkpoints, 5)
    assert first != second and checkpoints.newest_valid().path == second
    assert checkpoints.newest_valid().path != first
    third = save(checkpoints, 6)
    assert checkpoints.newest_valid().path == third and len(names(tmp_path)) == 3


@pytest.mark.parametrize(
    "file",
    ["learner-0.safetensors", "learner-0.json", "replay-0.safetensors", "replay-0.json", "meta.json", "manifest.json"],
)
def test_a_flipped_bit_falls_back_to_the_previous_by_name(tmp_path: Path, file: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    older, newer = save(checkpoints, 1, 1.0), save(checkpoints, 2, 2.0)
    flip(newer / file)
    found = checkpoints.newest_valid()
    assert found.path == older
    assert len(found.skipped) == 1 and "update-000000002" in found.skipped[0]
    assert checkpoints.best_valid().path == older
    if file.startswith("learner"):
        with pytest.raises(CorruptCheckpoint):
            load_role(newer, "learner", 0)


def test_damaged_checkpoints_do_not_push_out_what_training_goes_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    older, newer = save(checkpoints, 10), save(checkpoints, 20)
    flip(newer / "learner-0.safetensors")
    resumed = Checkpoints(tmp_path, keep=2)
    assert resumed.newest_valid().path == older
    latest = save(resumed, 15)
    assert set(names(tmp_path)) == {older.name, latest.name}
    found = resumed.newest_valid()
    assert found.path == latest and found.skipped == []


def test_a_full_disk_keeps_the_previous_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    previous = save(checkpoints, 1)

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoints, 2)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoints, 3)
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == [previous.name]
    assert checkpoints.newest_valid().path == previous


def test_arrays_are_written_as_safetensors_does(tmp_path: Path) -> None:
    """All dtypes, empty arrays, scalars, and memory that is not contiguous."""
    arrays = {name: np.arange(6).astype(name).reshape(2, 3) for name in module._DTYPES}
    arrays |= {"none": np.empty((0, 4)), "one": np.array(7.5), "turned": np.arange(12.0).reshape(3, 4).T}
    save_role(tmp_path, "replay", 0, arrays, {"inserted": 3})
    loaded = load_file(tmp_path / "replay-0.safetensors")
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert load_values(tmp_path, "replay", 0) == {"inserted": 3}
    assert load_values(tmp_path, "replay", 1) == {}


COMMITTER = """
import sys
from pathlib import Path
import numpy as np
from thespis.runs.checkpoints import Checkpoints, save_role
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
for update in range(int(sys.argv[2]), 10**9):
    staging = checkpoints.stage()
    save_role(staging, "learner", 0, {"w": np.full(20_000, update)}, {"update": update})
    checkpoints.commit(staging, {"update": update, "score": float(update % 7)})
    print(update, flush=True)
"""


@pytest.mark.timeout(120)
def test_a_process_killed_while_committing_always_leaves_a_valid_newest(tmp_path: Path) -> None:
    dice = random.Random(0)
    update = 0
    for _ in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", COMMITTER, str(tmp_path), str(update + 1)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            time.sleep(dice.uniform(0.0, 0.03))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        # Every directory with a checkpoint's name is complete, before any sweep or repair.
        for name in names(tmp_path):
            if name.startswith("update-"):
                verify(tmp_path / name)
        found = Checkpoints(tmp_path, keep=2).newest_valid()
        assert found.path is not None and found.skipped == []
        update = read_meta(found.path)["update"]
        assert update >= acknowledged
        loaded = load_role(found.path, "learner", 0)
        assert loaded is not None and loaded[1] == {"update": update} and (loaded[0]["w"] == update).all()
        sweep(tmp_path)
        assert all(name.startswith("update-") for name in names(tmp_path))


def test_the_digest_of_weights_sees_names_dtypes_shapes_and_bytes() -> None:
    zeros = np.zeros(4, np.float32)
    same = weights_sha256({"a": zeros, "b": zeros})
    assert weights_sha256({"b": zeros, "a": zeros.copy()}) == same
    assert weights_sha256({"a": np.asfortranarray(zeros), "b": zeros}) == same
    others: list[dict[str, Array]] = [
        {"a": zeros, "c": zeros},
        {"a": zeros.astype(np.int32), "b": zeros},
        {"a": zeros.reshape(2, 2), "b": zeros},
        {"a": -zeros, "b": zeros},
        {"a": zeros},
    ]
    assert len({same, *(weights_sha256(other) for other in others)}) == 6


WHOLE = {"weights/w": np.ones(2, np.float32)}
LAYOUT = {"layout": [["w", [12]]]}


def slices(staging: Path, name: str, shards: int = 12) -> None:
    for shard in range(shards):
        save_role(staging, name, shard, {"values": np.full(1, shard, np.float32)}, LAYOUT)


def test_the_policy_is_that_of_the_roles_that_hold_it_whatever_they_are_called(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, required=[("shard", index) for index in range(12)])
    staging = checkpoints.stage()
    slices(staging, "shard")
    save_role(staging, "learner", 0, WHOLE, {})
    assert policy_weights(staging, [("learner", 0)])["w"].tolist() == [1.0, 1.0]
    path = checkpoints.commit(staging, {"update": 1})
    assert policy_weights(path)["w"].tolist() == list(range(12))
    assert read_meta(path) == {"update": 1}


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_that_does_not_say_who_holds_the_policy(tmp_path: Path, whole: bool) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    staging = checkpoints.stage()
    slices(staging, "shard")
    save_role(staging, "replay", 0, {"steps/values": np.zeros(3)}, {})
    if whole:
        save_role(staging, "learner", 0, WHOLE, {})
    found = policy_weights(checkpoints.commit(staging, {"update": 1}))
    assert found is not None and found["w"].tolist() == ([1.0, 1.0] if whole else list(range(12)))


@pytest.mark.parametrize("name", ["../elsewhere", "gone-0", 3])
def test_holders_that_are_no_files_of_the_checkpoint_are_not_read(tmp_path: Path, name: Any) -> None:
    path = save(Checkpoints(tmp_path, keep=1), 1)
    save_role(tmp_path, "elsewhere", 0, WHOLE, {})
    (tmp_path / "elsewhere-0.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (path / "meta.json").write_text(json.dumps({"update": 1, "holders": [name]}))
    assert policy_weights(path) is None
