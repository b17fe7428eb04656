"""Writes rows of metrics to metrics.jsonl and TensorBoard. The x-axis is environment steps.

A failed write never stops the run: it warns once, and training continues.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thespis.core.system.commit import commit_file, to_json
from thespis.core.system.files import read_bytes
from thespis.runs.directory import RunDirectory


class MetricsWriter:
    """Appends each row to both files; `warn` receives the first failure of a series, not the rest."""

    def __init__(self, run: RunDirectory, warn: Callable[[str], None]) -> None:
        self._path = run.metrics
        self._events = run.tensorboard
        self._warn = warn
        self._failing = False
        self._lines: Appender | None = None
        self._tensorboard: _TensorBoard | None = None
        self._purge: int | None = None

    def write(self, step: int, seconds: float, row: dict[str, float]) -> None:
        """Write one row, taken after `step` environment steps and `seconds` of run time."""
        try:
            if self._lines is None:
                self._lines = Appender(self._path)
                self._lines.cut_torn_line()
            if self._tensorboard is None:
                self._tensorboard = _TensorBoard(self._events, self._purge)
            self._lines.write(to_json({"step": step, "time": seconds, **row}, indent=None))
            self._tensorboard.write(step, row)
        except OSError as error:
            if not self._failing:
                self._warn(f"metrics are not written: {error}; training continues")
            self._failing = True
        else:
            self._failing = False

    def reopen(self) -> None:
        """Start new files after the old ones were deleted."""
        self.close()
        self._lines = self._tensorboard = None

    def rewind(self, step: int, seconds: float) -> int:
        """Remove the rows after the checkpoint of a resumed run, which repeats those steps; returns how many.

        So neither steps nor seconds decrease. An evaluation of that checkpoint stays, at the checkpoint's time. The new
        event file makes TensorBoard purge all later steps.
        """
        self._purge = step + 1
        if not self._path.is_file():
            return 0
        try:
            kept, cut = _rewound(read_bytes(self._path), step, seconds)
            if kept is not None:
                commit_file(self._path, kept)
            return cut
        except OSError as error:
            self._warn(f"metrics after step {step:,} are not removed: {error}; training continues")
            return 0

    def close(self) -> None:
        """Close both files."""
        if self._lines is not None:
            self._lines.close()
        if self._tensorboard is not None:
            self._tensorboard.file.close()


def _rewound(data: bytes, step: int, seconds: float) -> tuple[bytes | None, int]:
    """The rows up to `step` and `seconds`, or None if all may stay; and the number of removed rows."""
    lines = data.splitlines(keepends=True)
    tail: list[bytes] = []
    cut = 0
    changed = False
    while lines:
        row = _parsed(lines[-1])
        if row is not None and row["step"] <= step and row["time"] <= seconds:
            break
        del lines[-1]
        changed = True
        if row is None:
            continue  # torn by a kill
        if row["step"] == step and "eval/mean_reward" in row:
            tail.append(to_json({**row, "time": seconds}, indent=None))
        else:
            cut += 1
    return (b"".join([*lines, *reversed(tail)]) if changed else None), cut


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row if line.endswith(b"\n") else None


class Appender:
    """A file that grows by whole records: a partial write is truncated, so later records stay readable."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def write(self, record: bytes) -> None:
        """Append one record; truncates it again if the write fails."""
        try:
            left = memoryview(record)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(record)

    def sync(self) -> None:
        """Return once all records are on disk."""
        os.fsync(self._descriptor)

    def cut_torn_line(self) -> None:
        """Remove a last line without a newline, which a kill left."""
        keep = os.pread(self._descriptor, self._size, 0).rfind(b"\n") + 1
        os.ftruncate(self._descriptor, keep)
        self._size = keep

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class _TensorBoard:
    """One event file, written with TensorBoard's own record format and messages.

    Its `EventFileWriter` is not used: it imports TensorFlow if installed, and its writer thread dies on a full disk.
    """

    def __init__(self, directory: Path, purge: int | None) -> None:
        """`purge`: the step from which TensorBoard discards the values of earlier event files."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        directory.mkdir(exist_ok=True)
        # TensorBoard reads files in the order of their names, so this one must be the last.
        earlier = [file.name.split(".")[3] for file in directory.glob("events.out.tfevents.*.*")]
        second = max([time.time_ns() // 10**9, *(int(name) + 1 for name in earlier if name.isdecimal())])
        name = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}"
        self._event, self._summary = Event, Summary
        self.file = Appender(directory / name)
        self._records = RecordWriter(self.file)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if purge is not None:
            start = SessionLog(status=SessionLog.START)
            self._records.write(Event(wall_time=time.time(), step=purge, session_log=start).SerializeToString())

    def write(self, step: int, row: dict[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._records.write(event.SerializeToString())
