"""A commit is complete or absent, at every point where it can be interrupted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from thespis.core.system import commit
from thespis.core.system.commit import CorruptCheckpoint, commit_directory, commit_file, stage, sweep, to_json, verify


class Crash(BaseException):
    """A simulated kill; not an `Exception`, so that no handler catches it."""


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int, error: BaseException) -> None:
    """Make the `call`-th call of `os.<name>` raise `error`."""
    real, calls = getattr(os, name), 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return real(*args)

    monkeypatch.setattr(os, name, failing)


def committed(directory: Path, name: str = "done") -> Path:
    staging = stage(directory)
    (staging / "a.bin").write_bytes(b"alpha" * 100)
    (staging / "b.json").write_bytes(b'{"x": 1}')
    commit_directory(staging, directory / name)
    return directory / name


def test_a_committed_file_has_the_new_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    commit_file(target, b"one")
    commit_file(target, b"two")
    assert target.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("error", [Crash(), OSError(errno.ENOSPC, "No space left on device")], ids=["crash", "full"])
@pytest.mark.parametrize(
    ("name", "call", "survivor"), [("fsync", 1, b"old"), ("rename", 1, b"old"), ("fsync", 2, b"new")]
)
def test_an_interrupted_file_is_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int, survivor: bytes, error: BaseException
) -> None:
    target = tmp_path / "x.json"
    commit_file(target, b"old")
    fail_at(monkeypatch, name, call, error)
    with pytest.raises(type(error)):
        commit_file(target, b"new")
    assert target.read_bytes() == survivor
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


# Two files, the manifest and the staging directory are synced before the rename, the parent after it.
@pytest.mark.parametrize(
    ("name", "call", "exists"),
    [
        ("fsync", 1, False),
        ("fsync", 2, False),
        ("fsync", 3, False),
        ("fsync", 4, False),
        ("rename", 1, False),
        ("fsync", 5, True),
    ],
)
def test_an_interrupted_directory_is_absent_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int, exists: bool
) -> None:
    previous = committed(tmp_path, "previous")
    fail_at(monkeypatch, name, call, Crash())
    with pytest.raises(Crash):
        committed(tmp_path, "next")
    monkeypatch.undo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == (["next", "previous"] if exists else ["previous"])
    verify(previous)
    if exists:
        verify(tmp_path / "next")


def test_a_full_disk_while_writing_the_manifest_leaves_the_previous_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous = committed(tmp_path, "previous")
    staging = stage(tmp_path)
    (staging / "a.bin").write_bytes(b"alpha")

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        commit_directory(staging, tmp_path / "next")
    assert [entry.name for entry in tmp_path.iterdir()] == ["previous"]
    verify(previous)


def test_a_name_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    first = committed(tmp_path)
    with pytest.raises(OSError):
        committed(tmp_path)
    verify(first)
    assert [entry.name for entry in tmp_path.iterdir()] == ["done"]


def test_every_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    path = committed(tmp_path)
    for file in sorted(path.iterdir()):
        good = file.read_bytes()
        for bit in range(len(good) * 8):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << (bit % 8)
            file.write_bytes(bad)
            # A changed name or digest in the manifest is reported as a fault of the file it names.
            with pytest.raises(CorruptCheckpoint, match=None if file.name == commit.MANIFEST else file.name):
                verify(path)
        file.write_bytes(good)
    verify(path)


@pytest.mark.parametrize("name", ["a.bin", "b.json", commit.MANIFEST])
def test_missing_and_cut_files_are_found_and_named(tmp_path: Path, name: str) -> None:
    file = committed(tmp_path) / name
    good = file.read_bytes()
    file.write_bytes(good[:-3])
    with pytest.raises(CorruptCheckpoint, match=name):
        verify(tmp_path / "done")
    file.unlink()
    with pytest.raises(CorruptCheckpoint, match=f"{name} is missing"):
        verify(tmp_path / "done")


def test_what_a_killed_writer_left_in_staging_is_not_committed(tmp_path: Path) -> None:
    staging = stage(tmp_path)
    (staging / ".tmpAbC123").write_bytes(b"half")
    (staging / "a.bin").write_bytes(b"whole")
    commit_directory(staging, tmp_path / "done")
    assert sorted(entry.name for entry in (tmp_path / "done").iterdir()) == ["a.bin", commit.MANIFEST]


def test_sweep_removes_leftovers_and_nothing_else(tmp_path: Path) -> None:
    kept = committed(tmp_path)
    (stage(tmp_path) / "half").write_bytes(b"?")
    (tmp_path / ".tmp-file").write_bytes(b"?")
    assert len(sweep(tmp_path)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["done"]
    verify(kept)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Simulate another process that adds files to a directory while it is removed."""
    files: list[Path] = []
    unlink = os.unlink

    def and_write(*args: Any, **kwargs: Any) -> None:
        unlink(*args, **kwargs)
        while files:
            file = files.pop()
            if file.parent.exists():
                file.write_bytes(b"late")

    monkeypatch.setattr(os, "unlink", and_write)
    return files


@pytest.mark.parametrize("remove", [commit.discard, lambda staging: sweep(staging.parent)], ids=["discard", "sweep"])
def test_a_late_writer_does_not_keep_a_directory(remove: Any, tmp_path: Path, late: list[Path]) -> None:
    """A checkpoint is discarded while processes still write their files."""
    part = stage(tmp_path) / ".storage"
    part.mkdir()
    (part / "learner-0.json").write_bytes(b"{}")
    late.append(part / "learner-0.safetensors")
    remove(part.parent)
    assert not late and not list(tmp_path.iterdir())


def test_a_late_part_does_not_spoil_a_commit(tmp_path: Path, late: list[Path]) -> None:
    staging = stage(tmp_path)
    (staging / "a.bin").write_bytes(b"whole")
    (staging / ".storage").mkdir()
    (staging / ".storage" / "learner-0.json").write_bytes(b"{}")
    late.append(staging / ".storage" / "learner-0.safetensors")
    commit_directory(staging, tmp_path / "done")
    assert not late and [entry.name for entry in tmp_path.iterdir()] == ["done"]
    assert sorted(entry.name for entry in (tmp_path / "done").iterdir()) == ["a.bin", commit.MANIFEST]


def test_json_never_holds_nan() -> None:
    assert to_json({"a": float("nan"), "b": [float("inf"), 1.5]}, indent=None) == b'{"a": null, "b": [null, 1.5]}\n'
