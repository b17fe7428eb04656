"""An inference server with a listener, its clients, and a relay in between that can break their connections."""

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
from thespis.core.payloads import InferenceEndpoint
from thespis.core.types import Stream, Unroll
from thespis.experience.trajectory_assembler import StepMessage, TrajectoryAssembler
from thespis.roles import Batching, InferenceServer
from thespis.transport.grpc_client import GrpcInferenceClient
from thespis.transport.grpc_server import GrpcInferenceServer
from thespis.transport.inference_schema import InferenceSchema
from thespis.transport.shm_client import ShmInferenceClient
from thespis.transport.shm_server import ShmInferenceServer
from thespis.transport.tls import Tls

grpc = pytest.importorskip("grpc")
ROWS = 4


def layout(shape: tuple[int, ...] = (1,), dtype: Any = np.float32, environments: int = ROWS) -> InferenceSchema:
    return InferenceSchema.of(Box(0, 100, shape, dtype), Discrete(2), environments)


class Relay:
    """Forwards bytes between its own socket and another, in both directions, until it is cut."""

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
    """A server behind a listener, for actors of four environments; unrolls have two steps."""

    name = "actor.inference.open_session"

    def __init__(self, batch: int, patience: float, address: str | None, tls: Tls | None, shared_memory: bool) -> None:
        self.policy, self.weights, self.unrolls = Policy(), Weights(), list[tuple[Stream, Unroll]]()
        self._batch, self._patience, self._address, self._tls, self._shared_memory = (
            batch,
            patience,
            address,
            tls,
            shared_memory,
        )
        self._numbers: dict[tuple[int, int], int] = {}
        self.clients: list[Any] = []
        self.open()

    def open(self) -> None:
        """Start an incarnation of the server."""
        assembler = TrajectoryAssembler(2, lambda rows: (np.zeros(rows, np.int64),), np.zeros((), np.int64))
        ctx = YieldingContext(Identity("inference", 0, run_seed=0))
        self.server = InferenceServer(
            ctx, self.policy, assembler, self.weights, self._insert, Batching(self._batch, self._patience),  # type: ignore[arg-type]
            listener=self._listener(),
        )  # fmt: skip
        self._run = asyncio.create_task(self.server.run())

    def _listener(self) -> Any:
        if self._shared_memory:
            return ShmInferenceServer(layout())
        return GrpcInferenceServer(layout(), self._address, self._tls)

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.server.close()

    async def __call__(self, stream: Stream) -> InferenceEndpoint:
        return await self.server.open_session(stream)

    def client(
        self, actor: int, incarnation: int = 0, made: InferenceSchema | None = None, tls: Tls | None = None
    ) -> Any:
        ctx = YieldingContext(Identity("actor", actor, run_seed=0, incarnation=incarnation))
        if self._shared_memory:
            self.clients.append(ShmInferenceClient(ctx, self, made or layout()))
        else:
            self.clients.append(GrpcInferenceClient(ctx, self, made or layout(), tls or self._tls))
        return self.clients[-1]

    def message(self, actor: int, incarnation: int = 0, start: int = 0, rows: int = ROWS) -> StepMessage:
        """The next message of these environments, whose observations identify them and the message."""
        number = self._numbers.get((actor, start), 0)
        self._numbers[actor, start] = number + 1
        obs = (actor * 10_000 + number * 100 + start + np.arange(rows, dtype=np.float32))[:, None]
        flags = np.full(rows, 8 | (number == 0), np.uint8)
        stream = Stream(("actor", actor), incarnation)
        return StepMessage(stream, start, number, obs, np.zeros(rows, np.float32), flags, None)

    async def _insert(self, stream: Stream, unroll: Unroll) -> None:
        self.unrolls.append((stream, unroll))


@asynccontextmanager
async def hall(
    batch: int = 1,
    patience: float = 0.001,
    address: str | None = None,
    tls: Tls | None = None,
    shared_memory: bool = False,
) -> AsyncIterator[Hall]:
    made = Hall(batch, patience, address, tls, shared_memory)
    try:
        yield made
    finally:
        for client in made.clients:
            await client.close()
        await made.close()


def play(script: Callable[[Hall], Any], **settings: Any) -> None:
    async def run() -> None:
        async with hall(**settings) as made:
            await script(made)

    asyncio.run(run())


async def pending_request(server: InferenceServer, unlike: Any = None) -> Any:
    """Wait until a request other than `unlike` is pending, and return it."""
    while not (found := [one for one in server._requests if one is not unlike and not one.responder.cancelled]):
        await asyncio.sleep(0.001)
    return found[0]
