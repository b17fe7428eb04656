"""log.txt: its size is bounded, and a deleted file is created again."""

from __future__ import annotations

from pathlib import Path

import pytest

from thespis.core.errors import ThespisError
from thespis.runs import run_log
from thespis.runs.run_log import RunLog


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(run_log, "_HEAD_BYTES", 100)
    monkeypatch.setattr(run_log, "_TAIL_BYTES", 1000)
    path = tmp_path / "log.txt"
    log = RunLog(path)
    log.write("it begins")
    with path.open("ab", buffering=0) as process:  # as processes of a run do
        for number in range(2000):
            process.write(f"line {number}\n".encode())
        log.trim()
        assert path.stat().st_size < 1300
        process.write(b"it goes on\n")
    text = path.read_text()
    log.close()
    assert "it begins" in text and "bytes were cut here" in text and text.endswith("line 1999\nit goes on\n")


def test_a_log_is_claimed_once(tmp_path: Path) -> None:
    first = RunLog(tmp_path / "log.txt")
    with pytest.raises(ThespisError, match="is in use"):
        RunLog(tmp_path / "log.txt")
    first.close()
    RunLog(tmp_path / "log.txt").close()


def test_a_log_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(ThespisError, match="log.txt cannot be written"):
        RunLog(tmp_path / "log.txt")
