"""Starting, watching and ending one child process, so that nothing outlives the run.

Children are started afresh (never forked from a process that has threads), in a session of their own so that
a terminal's Ctrl-C reaches only the supervisor, and the kernel kills them when their parent dies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from thespis.runtime.control import Control

_PR_SET_PDEATHSIG = 1
_STATUS = struct.Struct("<diiqq")  # since when, working (1) or not (0), env + 1 (0: not known), episode, step
_PLACE = struct.Struct("<iqq")  # the last three of them
ARENA_BYTES = 4 << 30
ENVIRONMENT = {
    # Each process is one worker among several: numpy's matrix product must not spread over their cores as well.
    "OPENBLAS_NUM_THREADS": "1",
    # Batches and activations come and go with every update. Given back to the system each time, their memory is
    # cleared and mapped anew each time, which costs a third of a small learner's update.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""What every process of a run is given, unless the user has set it."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent goes; leave at once if it has gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Status:
    """A page of shared memory in which a process says which environment it is stepping, and since when."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        page = memoryview(self._page)
        self._since, self._working = page[:8].cast("d"), page[8:12].cast("i")

    def begin(self, now: float) -> None:
        self._since[0], self._working[0] = now, 1

    def end(self) -> None:
        self._working[0] = 0

    def locate(self, env: int, episode: int, step: int) -> None:
        _PLACE.pack_into(self._page, 12, env + 1, episode, step)

    def stuck(self, limit: float) -> str | None:
        """Where the process is, if it has been stepping one environment for longer than `limit` seconds."""
        since, working, env, episode, step = self._read()
        if not working or time.monotonic() - since < limit:
            return None
        place = f"env {env - 1}, episode {episode}, step {step}" if env else "one of its environments"
        return f"{place}: did not return within {limit:g} s"

    def _read(self) -> tuple[float, int, int, int, int]:
        return _STATUS.unpack_from(self._page)


def peak_memory_mb() -> float:
    """The most memory this process has had: the peak is what must fit.

    Not `getrusage`: its peak begins with that of the process which started this one.
    """
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0.0)


@dataclass(slots=True)
class Child:
    """A running child process, as its supervisor sees it."""

    name: str
    process: subprocess.Popen[bytes]
    control: Control
    pidfd: int
    arena: int
    status: Status
    up: bool = False
    """It has built its roles and reported: from now on it can be asked."""
    failure: tuple[str, str, bool] | None = None
    """What went wrong: who and what in a line, the traceback, and whether the user can mend it."""

    @property
    def ending(self) -> str:
        """How it ended, for a child that said nothing itself."""
        code = self.process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """End it and whatever it started itself: it leads a session of its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def release(self) -> None:
        """Bury a child that has ended, or been killed, and give back what it held."""
        self.kill()
        self.process.wait()
        self.control.close()
        os.close(self.pidfd)
        os.close(self.arena)


def status_page(name: str) -> int:
    """Memory for a `Status`, as a descriptor."""
    page = os.memfd_create(f"thespis-{name}-status", os.MFD_CLOEXEC)
    os.ftruncate(page, mmap.PAGESIZE)
    return page


def spawn(name: str, log: IO[bytes]) -> Child:
    """Start a child that waits on its control socket for what to be. Its output goes to the run's log."""
    ours, theirs = socket.socketpair()
    arena = os.memfd_create(f"thespis-{name}", os.MFD_CLOEXEC)
    os.ftruncate(arena, ARENA_BYTES)
    page = status_page(name)
    keep = (theirs.fileno(), arena, page)
    process = subprocess.Popen(
        [sys.executable, "-m", "thespis.runtime.child", *map(str, keep), str(os.getpid())],
        pass_fds=keep,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**ENVIRONMENT, **os.environ},
    )
    theirs.close()
    status = Status(page)
    os.close(page)
    return Child(name, process, Control(ours), os.pidfd_open(process.pid), arena, status)
