"""A server with a door, actors that come to it, and a relay in between that can break their streams."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import YieldingContext
from gymnasium.spaces import Box, Discrete
from inference_parts import Policy, Weights

from thespis.core.context import Identity
from thespis.core.messages import Invitation
from thespis.core.types import Stream, Unroll
from thespis.experience.seats import Seats, Told
from thespis.roles import InferenceServer
from thespis.transport.grpc_client import Line
from thespis.transport.grpc_server import Door
from thespis.transport.inference_schema import Layout
from thespis.transport.shm_client import NearLine
from thespis.transport.shm_server import NearDoor
from thespis.transport.tls import Tls

grpc = pytest.importorskip("grpc")
ROWS = 4


def layout(shape: tuple[int, ...] = (1,), dtype: Any = np.float32, environments: int = ROWS) -> Layout:
    return Layout.of(Box(0, 100, shape, dtype), Discrete(2), environments)


class Relay:
    """A stretch of the way that can break: all that comes to a socket of its own is passed on to another, and back."""

    def __init__(self, path: Path) -> None:
        self.path, self.target = path, ""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.target.removeprefix("unix:"))
                self._ends += near, far
                for one, other in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=(one, other)))
                    self._threads[-1].start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)

    def cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._server, *self._ends):
            end.close()


class Hall:
    """A server behind a door, for actors of four environments; unrolls are of two steps."""

    name = "actor.inference.invite"

    def __init__(self, batch: int, patience: float, address: str | None, tls: Tls | None, near: bool) -> None:
        self.policy, self.weights, self.unrolls = Policy(), Weights(), list[tuple[Stream, Unroll]]()
        self._batch, self._patience, self._address, self._tls, self._near = batch, patience, address, tls, near
        self._numbers: dict[tuple[int, int], int] = {}
        self.lines: list[Any] = []
        self.open()

    def open(self) -> None:
        """Start a life of the server."""
        seats = Seats(2, lambda rows: (np.zeros(rows, np.int64),), np.zeros((), np.int64))
        ctx = YieldingContext(Identity("inference", 0, run_seed=0))
        self.server = InferenceServer(
            ctx, self.policy, seats, self.weights, self._insert, self._batch, self._patience,  # type: ignore[arg-type]
            door=NearDoor(layout()) if self._near else Door(layout(), self._address, self._tls),
        )  # fmt: skip
        self._run = asyncio.create_task(self.server.run())

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.server.close()

    async def __call__(self, stream: Stream) -> Invitation:
        return await self.server.invite(stream)

    def line(self, actor: int, life: int = 0, made: Layout | None = None, tls: Tls | None = None) -> Any:
        ctx = YieldingContext(Identity("actor", actor, run_seed=0, incarnation=life))
        if self._near:
            self.lines.append(NearLine(ctx, self, made or layout()))
        else:
            self.lines.append(Line(ctx, self, made or layout(), tls or self._tls))
        return self.lines[-1]

    def told(self, actor: int, life: int = 0, start: int = 0, rows: int = ROWS) -> Told:
        """The next question of these environments, whose observations name them and the question."""
        number = self._numbers.get((actor, start), 0)
        self._numbers[actor, start] = number + 1
        obs = (actor * 10_000 + number * 100 + start + np.arange(rows, dtype=np.float32))[:, None]
        flags = np.full(rows, 8 | (number == 0), np.uint8)
        return Told(Stream(("actor", actor), life), start, number, obs, np.zeros(rows, np.float32), flags, None)

    async def _insert(self, stream: Stream, unroll: Unroll) -> None:
        self.unrolls.append((stream, unroll))


@asynccontextmanager
async def hall(
    batch: int = 1, patience: float = 0.001, address: str | None = None, tls: Tls | None = None, near: bool = False
) -> AsyncIterator[Hall]:
    made = Hall(batch, patience, address, tls, near)
    try:
        yield made
    finally:
        for line in made.lines:
            await line.close()
        await made.close()


def play(script: Callable[[Hall], Any], **settings: Any) -> None:
    async def run() -> None:
        async with hall(**settings) as made:
            await script(made)

    asyncio.run(run())


async def asked(server: InferenceServer, unlike: Any = None) -> Any:
    """Wait for a question that waits, other than the one before."""
    while not (found := [one for one in server._asked if one is not unlike and not one.asker.gone]):
        await asyncio.sleep(0.001)
    return found[0]
