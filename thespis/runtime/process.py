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
import uuid
from asyncio import AbstractEventLoop
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from thespis.core.system.reaper import kill_marked
from thespis.core.system.threads import THREADS
from thespis.core.watch import Doing
from thespis.runtime.control import Control

_PR_SET_PDEATHSIG = 1
_STEP, _MAKE, _CLOSE = 1, 2, 3
_STATUS = struct.Struct("<diiqq")  # since when, doing what (0: nothing), env + 1 (0: not known), episode, step
_PLACE = struct.Struct("<iqq")  # the last three of them
ARENA_BYTES = 4 << 30
ENVIRONMENT = {
    **THREADS,
    # Batches and activations come and go with every update. Given back to the system each time, their memory is
    # cleared and mapped anew each time, which costs a third of a small learner's update.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""What every process of a run is given, unless the user has set it."""
RUN_MARK = "THESPIS_RUN"
"""Environment variable that names the run. All that a process of the run starts inherits it."""
_PROCESS_MARK = "THESPIS_PROCESS"
"""The same for one process of the run, each time it is started."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent goes; leave at once if it has gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Status:
    """A page of shared memory in which a process says which environment it is at, doing what, and since when."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        page = memoryview(self._page)
        self._since, self._working = page[:8].cast("d"), page[8:12].cast("i")

    def begin(self, now: float) -> None:
        self._since[0], self._working[0] = now, _STEP

    def handle(self, doing: Doing, env: int) -> None:
        self.locate(env, 0, 0)
        self._since[0], self._working[0] = time.monotonic(), _MAKE if doing == "make" else _CLOSE

    def end(self) -> None:
        self._working[0] = 0

    def locate(self, env: int, episode: int, step: int) -> None:
        _PLACE.pack_into(self._page, 12, env + 1, episode, step)

    def stuck(self, limit: float) -> str | None:
        """Where the process is, if one environment has kept it for longer than `limit` seconds."""
        since, working, *_ = self._read()
        if not working or time.monotonic() - since < limit:
            return None
        return f"{self.place} did not return within {limit:g} s"

    @property
    def place(self) -> str | None:
        """The environment that the process is in, and where there; None if in none."""
        _, working, env, episode, step = self._read()
        one = f"env {env - 1}" if env else "one of its environments"
        if working == _STEP:
            return f"{one}, episode {episode}, step {step}:" if env else f"{one}:"
        return {_MAKE: f"{one}: __init__", _CLOSE: f"{one}: close"}.get(working)

    @property
    def closing(self) -> bool:
        return self._read()[1] == _CLOSE

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
    mark: str
    """In its environment and in that of all it starts."""
    stopped_since: float | None = None
    """Since when it was seen stopped by a signal."""
    up: bool = False
    """It has built its roles and reported: from now on it can be asked."""
    failure: tuple[str, str, bool] | None = None
    """What went wrong: who and what in a line, the traceback, and whether the user can mend it."""

    @property
    def ending(self) -> str:
        """How it ended, for a child that said nothing itself."""
        code, place = self.process.returncode, self.status.place
        # Who is killed from outside may be anywhere; who crashes does so there.
        outside = code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
        within = f" in {place.rstrip(':')}" if place is not None and not outside else ""
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}{within}"
        return f"ended with exit code {code}{within}"

    @property
    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it. A debugger's stop is another state, and its own affair."""
        with suppress(OSError), open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
        return False

    def kill(self) -> None:
        """End it and what it started in its process group, which it leads."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_descendants(self) -> None:
        """End what it started in process groups of their own, too."""
        kill_marked(self.mark)

    def release(self) -> None:
        """Kill the child if it still runs, and give back what it held."""
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


def spawn(name: str, log: IO[bytes], run: str, loop: AbstractEventLoop, steps: int, number: int) -> Child:
    """Start a child that waits on its control socket for what to be. Its output goes to the run's log.

    `run` names the run in the child's environment. `steps`: the memory in which steps are counted, and `number` the
    child's entry in it. OSError: the child cannot be started, and nothing is left of it.
    """
    mark = uuid.uuid4().hex
    with ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            arena = os.memfd_create(f"thespis-{name}", os.MFD_CLOEXEC)
            undo.callback(os.close, arena)
            os.ftruncate(arena, ARENA_BYTES)
            page = status_page(name)
            try:
                keep = (theirs.fileno(), arena, page, steps)
                process = subprocess.Popen(
                    [sys.executable, "-m", "thespis.runtime.child", name, *map(str, (*keep, number, os.getpid()))],
                    pass_fds=keep,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**ENVIRONMENT, **os.environ, RUN_MARK: run, _PROCESS_MARK: mark},
                )
                status = Status(page)
            finally:
                os.close(page)
            undo.callback(process.wait)
            undo.callback(process.kill)
            pidfd = os.pidfd_open(process.pid)
        undo.pop_all()
    return Child(name, process, Control(ours, loop), pidfd, arena, status, f"{_PROCESS_MARK}={mark}")
