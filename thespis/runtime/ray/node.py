"""A process of the program on a node of the cluster, and its ways to those on other nodes."""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import os
import sys
import tempfile
import threading
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, TaskCancelledError

from thespis.core.errors import ThespisError
from thespis.core.opaque import dump, load
from thespis.runtime.direct import Meeting
from thespis.runtime.host import Host, Start
from thespis.runtime.process import Status, status_page
from thespis.transport.calls import Call
from thespis.transport.connection import Connection

ANSWER_SECONDS = 10.0
"""A process answers within this time, from a thread of its own, even if there is nothing to say."""
WATCH_SECONDS = 0.2
"""How often a process is heard. Each time costs a Ray call."""
RETRY_SECONDS = 0.2
"""Between two attempts to reach a process that does not answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process lives. `meeting`: the address of its direct lines, for processes of the same node."""

    node: str
    ip: str
    pid: int
    meeting: str


class RayLine:
    """A way to a process on another node: each call is a Ray call, large arrays go through Ray's object store."""

    def __init__(self, host: Host, handle: Any) -> None:
        self._host, self._handle = host, handle

    def send(self, message: Any) -> int:
        number, call = message
        body, buffers = dump(call)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        # It leaves now, before the sender goes on with what it has to do.
        self._host.spawn(self._carry(number, body, arrays, self._handle.carry.remote(body, *arrays)))
        return len(body) + sum(array.nbytes for array in arrays)

    def take(self, seconds: float = 0.0) -> None:
        """Ray brings what comes."""

    async def _carry(self, number: int, body: bytes, arrays: list[Any], reply: Any) -> None:
        while True:
            try:
                answer, *buffers = await reply
                break
            except ActorUnavailableError:
                # It may or may not have got the call; it tells repeated ones by their number.
                await asyncio.sleep(RETRY_SECONDS)
                reply = self._handle.carry.remote(body, *arrays)
            except (RayActorError, TaskCancelledError):
                # It is gone, or about to go; the supervisor brings a line to its next life, to repeat the call on.
                return
        nbytes = len(answer) + sum(buffer.nbytes for buffer in buffers)
        self._host.on_message(self, (number, (load(answer, buffers),)), nbytes)


@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload, untyped-decorator, unused-ignore]
class RayHost:
    """A process of the program. Its roles have the main event loop; `watch` answers from a thread of its own."""

    def __init__(self, name: str, env_timeout: float) -> None:
        self._name, self._env_timeout = name, env_timeout
        self._said: deque[Any] = deque()
        self._status = Status(status_page(name))

    async def begin(self, start: Start, token: bytes, topology: Path | None) -> Place:
        """Become the roles. `topology`: a file of the run directory that must be seen from here, with the token."""
        _forward_output(self._said.append)
        # What Ray hands over lies in its object store and is read-only; nothing here writes into a batch.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        if topology is not None and not (topology.exists() and run_digest(token) in topology.read_text()):
            raise ThespisError(
                f"{self._name} runs on node {_own_ip()}, which does not see the run directory {topology.parent}; "
                "give --run-dir a path that all nodes share"
            )
        sys.path[:] = [*start.path, *(path for path in sys.path if path not in start.path)]
        loop = asyncio.get_running_loop()
        self._host = host = Host(self._said.append, self._status, _own_ip())
        loop.set_exception_handler(
            lambda _, what: host.fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._meeting = Meeting(self._name, token, host.on_message, host.lost, host.adopt)
        host.spawn(self._meeting.receive())
        host.start(start)
        return Place(ray.get_runtime_context().get_node_id(), _own_ip(), os.getpid(), self._meeting.address)

    async def join(self, peer: str, handle: Any, meeting: str | None) -> None:
        """Take a line to another process: direct if it is on this node and can be reached, else through Ray."""
        line: Connection | RayLine = RayLine(self._host, handle)
        if meeting is not None:
            with suppress(OSError):  # nodes of one machine need not share its sockets
                line = await self._meeting.join(meeting)
        self._host.adopt(peer, line)

    async def carry(self, body: bytes, *arrays: Any) -> tuple[Any, ...]:
        """Answer a call from another node."""
        call: Call = load(body, arrays)
        answer, buffers = dump(await self._host.serve(call))
        return (answer, *(np.frombuffer(buffer, np.uint8) for buffer in buffers))

    async def obey(self, kind: str, *args: Any) -> tuple[Any, list[Any]]:
        """Do what the driver asks; what there is to say by then comes along, for there may be no later."""
        return await self._host.obey(kind, *args), self._take()

    @ray.method(concurrency_group="control")
    async def watch(self) -> list[Any]:
        """What the process has to say since the last time; waits until there is something."""
        for _ in range(round(ANSWER_SECONDS / WATCH_SECONDS)):
            await asyncio.sleep(WATCH_SECONDS)
            stuck = self._status.stuck(self._env_timeout)
            if stuck is not None:
                return [*self._take(), ("error", f"{self._name.replace('-', ' ')}: EnvError: {stuck}", "", False)]
            if self._said:
                break
        return self._take()

    @ray.method(concurrency_group="control")
    async def stacks(self) -> str:
        """What every thread is doing."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def _take(self) -> list[Any]:
        taken = []
        with suppress(IndexError):  # two threads take from it
            while True:
                taken.append(self._said.popleft())
        return taken


def run_digest(token: bytes) -> str:
    """Names a run without giving its token away."""
    return hashlib.sha256(token).hexdigest()


def _own_ip() -> str:
    return str(ray.util.get_node_ip_address())


def _forward_output(tell: Any) -> None:
    """Whatever is printed here, by Python or below it, also goes to the run's log."""
    read, write = os.pipe()
    before = os.dup(2)
    for descriptor in (1, 2):
        os.dup2(write, descriptor)
    os.close(write)

    def forward() -> None:
        while data := os.read(read, 1 << 16):
            os.write(before, data)
            tell(("log", data.decode(errors="replace")))

    threading.Thread(target=forward, daemon=True).start()
