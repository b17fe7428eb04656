"""Start, watch and end a child process, so that nothing outlives the run.

Children are new interpreters, never forks of a process with threads. Each has its own session, so that Ctrl-C in a
terminal reaches only the supervisor. The kernel kills them when their parent dies.
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

from thespis.core.system.reaper import PROCESS_MARK, RUN_MARK, kill_marked
from thespis.core.system.threads import THREADS
from thespis.core.watchdog import EnvPhase
from thespis.runtime.control import Control

_PR_SET_PDEATHSIG = 1
_STEP, _MAKE, _CLOSE = 1, 2, 3
_STATUS = struct.Struct("<diiqq")  # start time, phase (0: none), env + 1 (0: unknown), episode, step
_LOCATION = struct.Struct("<iqq")  # env + 1, episode, step
ARENA_BYTES = 4 << 30
ENVIRONMENT = {
    **THREADS,
    # Every update allocates and frees batches and activations. Returning that memory to the system each time costs a
    # third of a small learner's update, because the kernel clears and maps it again.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""Environment variables of every process of a run, unless the user sets them."""


def die_with_parent(parent: int) -> None:
    """Request SIGKILL from the kernel when the parent dies; exit at once if it is already dead."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Status:
    """A shared page with the environment call that a process is in: environment, phase and start time."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        page = memoryview(self._page)
        self._since, self._phase = page[:8].cast("d"), page[8:12].cast("i")

    def begin(self, now: float) -> None:
        """Record the start of an environment step."""
        self._since[0], self._phase[0] = now, _STEP

    def handle(self, phase: EnvPhase, env: int) -> None:
        """Record the start of creating or closing an environment."""
        self.locate(env, 0, 0)
        self._since[0], self._phase[0] = time.monotonic(), _MAKE if phase == "make" else _CLOSE

    def end(self) -> None:
        """Record that no environment call is running."""
        self._phase[0] = 0

    def locate(self, env: int, episode: int, step: int) -> None:
        """Record the environment, its episode and its step."""
        _LOCATION.pack_into(self._page, 12, env + 1, episode, step)

    def stuck(self, limit: float) -> str | None:
        """Describe the running environment call if it has taken longer than `limit` seconds."""
        since, phase, *_ = self._read()
        if not phase or time.monotonic() - since < limit:
            return None
        return f"{self.location} did not return within {limit:g} s"

    @property
    def location(self) -> str | None:
        """The running environment call, or None."""
        _, phase, env, episode, step = self._read()
        one = f"env {env - 1}" if env else "one of its environments"
        if phase == _STEP:
            return f"{one}, episode {episode}, step {step}:" if env else f"{one}:"
        return {_MAKE: f"{one}: __init__", _CLOSE: f"{one}: close"}.get(phase)

    @property
    def closing(self) -> bool:
        """Whether an environment is being closed."""
        return self._read()[1] == _CLOSE

    def _read(self) -> tuple[float, int, int, int, int]:
        return _STATUS.unpack_from(self._page)


def peak_memory_mb() -> float:
    """Return the peak memory use of this process.

    `getrusage` is no alternative: its peak includes the parent's at the time of the start.
    """
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0.0)


@dataclass(slots=True)
class Child:
    """A running child process."""

    name: str
    process: subprocess.Popen[bytes]
    control: Control
    pidfd: int
    arena: int
    status: Status
    mark: str
    """Variable in the environment of the child and of all its descendants."""
    stopped_since: float | None = None
    """Time at which the child was found stopped by a signal."""
    up: bool = False
    """The process has built its roles and accepts commands."""
    failure: tuple[str, str, bool] | None = None
    """An error of the process: one line, the traceback, and whether the user can fix it."""

    @property
    def ending(self) -> str:
        """How the child ended, for a child that reported no error."""
        code, location = self.process.returncode, self.status.location
        # A crash happens in the running environment call; a kill from outside is unrelated to it.
        killed = code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
        within = f" in {location.rstrip(':')}" if location is not None and not killed else ""
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}{within}"
        return f"ended with exit code {code}{within}"

    @property
    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the child. A process stopped by a debugger has another state."""
        with suppress(OSError), open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
        return False

    def kill(self) -> None:
        """Kill the child and its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_descendants(self) -> None:
        """Kill the child's descendants in other process groups."""
        kill_marked(self.mark)

    def release(self) -> None:
        """Kill the child if it still runs, and close its descriptors."""
        self.kill()
        self.process.wait()
        self.control.close()
        os.close(self.pidfd)
        os.close(self.arena)


def status_page(name: str) -> int:
    """Create the memory of a `Status` and return its descriptor."""
    page = os.memfd_create(f"thespis-{name}-status", os.MFD_CLOEXEC)
    os.ftruncate(page, mmap.PAGESIZE)
    return page


def spawn(name: str, log: IO[bytes], run: str, loop: AbstractEventLoop, steps: int, number: int) -> Child:
    """Start a child that waits on its control socket for a start command. Its output goes to the run's log.

    `run` identifies the run in the child's environment. `steps`: the shared memory of the step count; `number`: the
    child's entry in it. Raises OSError if the child cannot be started, and leaves nothing behind.
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
                    env={**ENVIRONMENT, **os.environ, RUN_MARK: run, PROCESS_MARK: mark},
                )
                status = Status(page)
            finally:
                os.close(page)
            undo.callback(process.wait)
            undo.callback(process.kill)
            pidfd = os.pidfd_open(process.pid)
        undo.pop_all()
    return Child(name, process, Control(ours, loop), pidfd, arena, status, f"{PROCESS_MARK}={mark}")
