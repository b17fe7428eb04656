"""A process of the local runtime: it is told everything over its control socket, and leaves when that closes."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from typing import Any

import uvloop

from thespis.core.step_count import StepCount
from thespis.runtime.control import Control
from thespis.runtime.host import Host, Start
from thespis.runtime.process import Status, die_with_parent
from thespis.transport.connection import Arena, Connection, PeerArena


class LocalHost:
    """A host behind a control socket."""

    def __init__(self, control: Control, arena: int, status: int, steps: StepCount) -> None:
        self._control = control
        self._arena = Arena(arena)
        self._host = Host(control.send, Status(status), steps=steps)

    async def run(self, start: Start) -> int:
        """Live until told to exit; return the exit code."""
        loop = asyncio.get_running_loop()
        # Nothing may fail in silence: an error in a callback is the process's error.
        loop.set_exception_handler(
            lambda _, what: self._host.fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._control.listen(loop, self._on_control)
        self._host.start(start)
        return await self._host.over

    def _on_control(self, message: Any, descriptors: list[int]) -> None:
        if message is None:
            os._exit(1)  # the supervisor is gone
        kind, *rest = message
        if kind == "peer":
            self._join(rest[0], descriptors)
        else:
            self._host.spawn(self._obey(kind, *rest))

    def _join(self, peer: str, descriptors: list[int]) -> None:
        sock, arena = descriptors
        peer_arena = PeerArena(arena)
        os.close(arena)
        line = Connection(socket.socket(fileno=sock), self._arena, peer_arena, self._host.on_message, self._host.lost)
        self._host.adopt(peer, line)

    async def _obey(self, kind: str, number: int, *args: Any) -> None:
        """Do what the supervisor asks, and answer with (number, result, error)."""
        result, error = None, None
        try:
            result = await self._host.obey(kind, *args)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._control.send(("answer", number, result, error))
        if kind == "exit" and not self._host.over.done():
            self._host.over.set_result(0)


async def _live(control: Control, arena: int, status: int, steps: StepCount, start: Start) -> int:
    return await LocalHost(control, arena, status, steps).run(start)


def main(arguments: list[str]) -> int:
    _, *numbers = arguments  # the name is there for `ps`
    control_fd, arena, status, steps, number, parent = map(int, numbers)
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    control = Control(socket.socket(fileno=control_fd))
    (_, start), _ = control.receive_one()
    sys.path[:] = start.path
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(control, arena, status, StepCount.map(steps, number), start))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Past the interpreter's own teardown: torch and some environments take a second to unload, or crash in it.
    os._exit(code)
