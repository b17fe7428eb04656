"""A process of the program on a node of the cluster, and its connections to other nodes."""

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
from thespis.core.opaque import dump_message, load_message
from thespis.runtime.process import Status, status_page
from thespis.runtime.rendezvous import Rendezvous
from thespis.runtime.role_process import RoleProcess, StartCommand
from thespis.transport.calls import RemoteCall
from thespis.transport.connection import Connection

ANSWER_SECONDS = 10.0
"""A process replies to `watch` within this time, from a separate thread, even without messages."""
WATCH_SECONDS = 0.2
"""Interval between two deliveries of messages. Each costs a Ray call."""
RETRY_SECONDS = 0.2
"""Interval between two attempts to reach an unavailable process."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The location of a process. `rendezvous`: the address of its listener, for processes of the same node."""

    node: str
    ip: str
    pid: int
    rendezvous: str


class RayPeerConnection:
    """A connection to a process on another node: each call is a Ray call; large arrays use Ray's object store."""

    def __init__(self, process: RoleProcess, handle: Any) -> None:
        self._process, self._handle = process, handle

    def send(self, message: Any) -> int:
        """Start a Ray call; return the number of bytes to transfer."""
        number, call = message
        body, buffers = dump_message(call)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        # Start the Ray call now, before the sender continues.
        self._process.spawn(self._await_reply(number, body, arrays, self._handle.serve.remote(body, *arrays)))
        return len(body) + sum(array.nbytes for array in arrays)

    def poll(self, seconds: float = 0.0) -> None:
        """Do nothing: Ray delivers replies."""

    async def _await_reply(self, number: int, body: bytes, arrays: list[Any], reply: Any) -> None:
        while True:
            try:
                answer, *buffers = await reply
                break
            except ActorUnavailableError:
                # The call may have arrived. The endpoint recognises repeated calls by their sequence number.
                await asyncio.sleep(RETRY_SECONDS)
                reply = self._handle.serve.remote(body, *arrays)
            except (RayActorError, TaskCancelledError):
                # The process is lost. The supervisor connects its next incarnation, and the call is repeated there.
                return
        nbytes = len(answer) + sum(buffer.nbytes for buffer in buffers)
        self._process.on_message(self, (number, (load_message(answer, buffers),)), nbytes)


@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload, untyped-decorator, unused-ignore]
class RayRoleProcess:
    """A process of the program. Its roles run on the main event loop; `watch` runs on a separate thread."""

    def __init__(self, name: str, env_timeout: float) -> None:
        self._name, self._env_timeout = name, env_timeout
        self._outbox: deque[Any] = deque()
        self._status = Status(status_page(name))

    async def begin(self, start: StartCommand, token: bytes, topology: Path | None) -> NodeAddress:
        """Build the roles. `topology`: a file with the run's digest that must be visible on this node."""
        _forward_output(self._outbox.append)
        # Arrays from Ray's object store are read-only; nothing here writes to a batch.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        if topology is not None and not (topology.exists() and run_digest(token) in topology.read_text()):
            raise ThespisError(
                f"{self._name} runs on node {_own_ip()}, which does not see the run directory {topology.parent}; "
                "give --run-dir a path that all nodes share"
            )
        sys.path[:] = [*start.path, *(path for path in sys.path if path not in start.path)]
        loop = asyncio.get_running_loop()
        self._process = process = RoleProcess(self._outbox.append, self._status, _own_ip())
        loop.set_exception_handler(
            lambda _, what: process.fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._rendezvous = Rendezvous(self._name, token, process.on_message, process.peer_lost, process.attach_peer)
        process.arena = self._rendezvous.arena
        process.spawn(self._rendezvous.receive())
        process.start(start)
        return NodeAddress(ray.get_runtime_context().get_node_id(), _own_ip(), os.getpid(), self._rendezvous.address)

    async def join(self, peer: str, handle: Any, rendezvous: str | None) -> None:
        """Connect to another process: directly if it is reachable on this node, else through Ray."""
        connection: Connection | RayPeerConnection = RayPeerConnection(self._process, handle)
        if rendezvous is not None:
            with suppress(OSError):  # nodes on one machine may have separate network namespaces
                connection = await self._rendezvous.join(rendezvous)
        self._process.attach_peer(peer, connection)

    async def serve(self, body: bytes, *arrays: Any) -> tuple[Any, ...]:
        """Serve a call from another node."""
        call: RemoteCall = load_message(body, arrays)
        answer, buffers = dump_message(await self._process.serve(call))
        return (answer, *(np.frombuffer(buffer, np.uint8) for buffer in buffers))

    async def handle_command(self, kind: str, *args: Any) -> tuple[Any, list[Any]]:
        """Execute a command; return its result and all pending messages, which may be the last ones."""
        return await self._process.handle_command(kind, *args), self._drain()

    @ray.method(concurrency_group="control")
    async def watch(self) -> list[Any]:
        """Return the messages since the last call; wait until there are some."""
        for _ in range(round(ANSWER_SECONDS / WATCH_SECONDS)):
            await asyncio.sleep(WATCH_SECONDS)
            stuck = self._status.stuck(self._env_timeout)
            if stuck is not None:
                return [*self._drain(), ("error", f"{self._name.replace('-', ' ')}: EnvError: {stuck}", "", False)]
            if self._outbox:
                break
        return self._drain()

    @ray.method(concurrency_group="control")
    async def stacks(self) -> str:
        """Return the stacks of all threads."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def _drain(self) -> list[Any]:
        messages = []
        with suppress(IndexError):  # two threads take messages
            while True:
                messages.append(self._outbox.popleft())
        return messages


def run_digest(token: bytes) -> str:
    """Return an identifier of a run that does not reveal its token."""
    return hashlib.sha256(token).hexdigest()


def _own_ip() -> str:
    return str(ray.util.get_node_ip_address())


def _forward_output(report: Any) -> None:
    """Copy stdout and stderr of this process, including native code, to the run's log."""
    read, write = os.pipe()
    before = os.dup(2)
    for descriptor in (1, 2):
        os.dup2(write, descriptor)
    os.close(write)

    def forward() -> None:
        while data := os.read(read, 1 << 16):
            os.write(before, data)
            report(("log", data.decode(errors="replace")))

    threading.Thread(target=forward, daemon=True).start()
