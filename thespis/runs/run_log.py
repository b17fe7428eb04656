"""RunLog: log.txt, with the run's messages and its processes' output. Its lock claims the run for one driver."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from thespis.core.errors import ThespisError

_MOST_BYTES = 16 << 20
_HEAD_BYTES, _TAIL_BYTES = 1 << 20, 4 << 20
"""Bytes kept of a log that has grown too long: its start, and its end."""


class RunLog:
    """Appends lines with their time. All writers append, so the file can be cut while they write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = time.monotonic()
        self._file = self._open()

    def _open(self) -> int:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ThespisError(f"{self._path} cannot be written ({error.strerror}); give another --run-dir") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise ThespisError(f"{self._path.parent} is in use: another process is training or resuming it") from None
        return file

    def write(self, line: str) -> None:
        """Append one line; ignores a full disk."""
        with suppress(OSError):  # a full disk must not end the run
            os.write(self._file, f"[{time.monotonic() - self._started:8.2f}] {line}\n".encode(errors="replace"))

    def trim(self) -> None:
        """Cut the middle out of a log that has grown too long."""
        with suppress(OSError):
            size = os.fstat(self._file).st_size
            if size <= _MOST_BYTES:
                return
            with open(self._path, "rb") as file:
                head = file.read(_HEAD_BYTES)
                file.seek(size - _TAIL_BYTES)
                tail = file.read()
            os.ftruncate(self._file, 0)
            cut = f"\n[... {size - _HEAD_BYTES - _TAIL_BYTES:,} bytes were cut here ...]\n"
            os.write(self._file, head + cut.encode() + tail)

    def reopen(self) -> None:
        """Start a new file after the old one was deleted."""
        file = self._open()
        os.close(self._file)
        self._file = file

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)
