"""A process of the local runtime. It receives commands over its control socket and exits when that closes."""

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
from thespis.runtime.process import Status, die_with_parent
from thespis.runtime.role_process import RoleProcess, StartCommand
from thespis.transport.arena import Arena, PeerArena
from thespis.transport.connection import Connection


class LocalRoleProcess:
    """A `RoleProcess` behind a control socket."""

    def __init__(self, control: Control, arena: int, status: int, steps: StepCount) -> None:
        self._control = control
        self._arena = Arena(arena)
        self._process = RoleProcess(control.send, Status(status), steps=steps, arena=self._arena)

    async def run(self, start: StartCommand) -> int:
        """Run until a command or an error ends the process; return the exit code."""
        loop = asyncio.get_running_loop()
        # Errors must not be lost: an error in a callback is an error of the process.
        loop.set_exception_handler(
            lambda _, what: self._process.fail("runtime", what.get("exception") or RuntimeError(what["message"]))
        )
        self._control.listen(loop, self._on_control)
        self._process.start(start)
        return await self._process.exited

    def _on_control(self, message: Any, descriptors: list[int]) -> None:
        if message is None:
            os._exit(1)  # the supervisor is gone
        kind, *rest = message
        if kind == "peer":
            self._connect(rest[0], descriptors)
        else:
            self._process.spawn(self._handle_command(kind, *rest))

    def _connect(self, peer: str, descriptors: list[int]) -> None:
        sock, arena = descriptors
        peer_arena = PeerArena(arena)
        os.close(arena)
        connection = Connection(
            socket.socket(fileno=sock), self._arena, peer_arena, self._process.on_message, self._process.peer_lost
        )
        self._process.attach_peer(peer, connection)

    async def _handle_command(self, kind: str, number: int, *args: Any) -> None:
        """Execute a command and reply with (number, result, error)."""
        result, error = None, None
        try:
            result = await self._process.handle_command(kind, *args)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._control.send(("answer", number, result, error))
        if kind == "exit" and not self._process.exited.done():
            self._process.exited.set_result(0)


async def _run(control: Control, arena: int, status: int, steps: StepCount, start: StartCommand) -> int:
    return await LocalRoleProcess(control, arena, status, steps).run(start)


def _main(arguments: list[str]) -> int:
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
        return runner.run(_run(control, arena, status, StepCount.map(steps, number), start))


if __name__ == "__main__":
    code = _main(sys.argv[1:])
    sys.stdout.flush()
    # Skip the interpreter's teardown: torch and some environments take a second to unload, or crash.
    os._exit(code)
