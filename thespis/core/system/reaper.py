"""Cleans up after a process that may be killed at any moment: `python reaper.py MARK [DIRECTORY]`, its input a pipe.

When the pipe closes, its owner has ended, however that came about. Every process that has the mark in its environment,
or a file of the directory open (a process that changes its title overwrites its environment), is then killed, and the
directory removed. It imports nothing of the project, so that it costs little while it waits.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SECONDS = 5.0
"""How long to look: what is being started just then carries the mark only a moment later."""


@contextmanager
def guarded(name: str, value: str, directory: Path | None = None) -> Iterator[None]:
    """Whatever becomes of this process, those with `name=value` in their environment, or the directory, end with it."""
    environment = {other: given for other, given in os.environ.items() if other != name}
    guard = subprocess.Popen(
        [sys.executable, "-S", __file__, f"{name}={value}", *([] if directory is None else [str(directory)])],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate()


def kill_marked(mark: str, spared: Container[int] = (), directory: str | None = None) -> int:
    """Kill the processes with the mark, or with a file of the directory open, and return how many there were."""
    found = [
        pid
        for pid in _living()
        if pid not in spared and (_marked(pid, mark.encode()) or (directory is not None and _within(pid, directory)))
    ]
    for pid in found:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def marked(mark: str) -> list[int]:
    """Living processes with `mark` (NAME=VALUE) in their environment, however deep below us they were started."""
    return [pid for pid in _living() if _marked(pid, mark.encode())]


def _living() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _marked(pid: int, mark: bytes) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return mark in file.read().split(b"\0")
    return False  # it ended while we looked, or is not ours


def _within(pid: int, directory: str) -> bool:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"{directory}/"):
                    return True
    return False


def main(mark: str, directory: str | None = None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spared = {os.getpid(), os.getppid()}
    sys.stdin.buffer.read()
    end = time.monotonic() + _SECONDS
    while kill_marked(mark, spared, directory) and time.monotonic() < end:
        time.sleep(0.1)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
