"""Cleans up after a process that may be killed at any moment: `python reaper.py MARK [DIRECTORY]`, stdin a pipe.

The pipe closes when its owner exits, for any reason. The reaper then kills every process that has the mark in its
environment or a file of the directory open, and removes the directory. The mark alone is not enough, because a process
that changes its title overwrites its environment. The module imports nothing of the project and costs little while it
waits.
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

RUN_MARK = "THESPIS_RUN"
"""Environment variable that identifies a run. All descendants of a process of the run inherit it."""
PROCESS_MARK = "THESPIS_PROCESS"
"""Environment variable that identifies one incarnation of a process of a run."""
_SECONDS = 5.0
"""How long to search: a process that is just starting carries the mark only a moment later."""


@contextmanager
def reaped(name: str, value: str, directory: Path | None = None) -> Iterator[None]:
    """Kill all processes with `name=value` in their environment, and remove `directory`, when this process exits.

    The reaper itself has no mark: a call of `kill_marked` for this process must not end the reaper before its work.
    """
    environment = {other: given for other, given in os.environ.items() if other not in (name, RUN_MARK, PROCESS_MARK)}
    reaper = subprocess.Popen(
        [sys.executable, "-S", __file__, f"{name}={value}", *([] if directory is None else [str(directory)])],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        reaper.communicate()


def kill_marked(mark: str, spared: Container[int] = (), directory: str | None = None) -> int:
    """Kill the processes with the mark, or with a file of the directory open, and return their number."""
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
    """Return the ids of live processes with `mark` (NAME=VALUE) in their environment, at any depth of descendants."""
    return [pid for pid in _living() if _marked(pid, mark.encode())]


def _living() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _marked(pid: int, mark: bytes) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return mark in file.read().split(b"\0")
    return False  # the process has exited, or belongs to another user


def _within(pid: int, directory: str) -> bool:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"{directory}/"):
                    return True
    return False


def _main(mark: str, directory: str | None = None) -> None:
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
    _main(*sys.argv[1:])
