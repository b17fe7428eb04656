"""The roles of one process: calls to another process, and to its next incarnation."""

from __future__ import annotations

import asyncio
import os
import pickle
from typing import Any

from thespis.core.context import Context, Identity
from thespis.core.program import Program
from thespis.runtime.process import Status, status_page
from thespis.runtime.role_process import RoleProcess, StartCommand
from thespis.transport.calls import RemoteCall


class RecordingConnection:
    """A connection that records its messages."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> int:
        self.sent.append(message)
        return 10

    def poll(self, seconds: float = 0.0) -> None:
        """Receive nothing."""


def test_pending_calls_are_repeated_to_a_new_incarnation() -> None:
    async def play() -> None:
        page = status_page("test")
        process = RoleProcess(lambda message: None, Status(page))
        os.close(page)
        process._processes = {("queue", 0): "storage"}
        old, new, took = RecordingConnection(), RecordingConnection(), list[tuple[int, int]]()
        process.attach_peer("storage", old)
        calls = [RemoteCall(("actor", 0, 1), number, 0, ("queue", 0), "insert", (number,)) for number in range(2)]
        given_up, wanted = (
            process._deliver(call, "actor.queue.insert", lambda *sizes: took.append(sizes)) for call in calls
        )
        given_up.cancel()
        process.attach_peer("storage", new)
        assert [call for _, call in old.sent] == calls
        assert [call for _, call in new.sent] == calls[1:]
        process.on_message(new, (new.sent[0][0], ("done",)), 5)
        assert await wanted == "done" and took == [(10 + 10, 5)]

    asyncio.run(play())


def cannot_be_built(ctx: Context) -> None:
    raise ValueError("no such file")


def test_only_the_first_error_is_reported() -> None:
    async def play() -> list[Any]:
        result: list[Any] = []
        page = status_page("test")
        process = RoleProcess(result.append, Status(page))
        os.close(page)
        program = Program("test")
        program.at().add("server", cannot_be_built)
        identity = Identity("server", 0, run_seed=0)
        start = StartCommand(
            [], pickle.dumps(program.roles), [identity], {}, frozenset(), frozenset(), None, report_seconds=1.0
        )
        process.start(start)
        process.on_message(
            RecordingConnection(), (1, RemoteCall(("worker", 0, 1), 0, 0, ("server", 0), "pull", ())), 10
        )
        assert process.exited.done()
        return [message for kind, message, *_ in result if kind == "error"]

    assert asyncio.run(play()) == ["server 0: ValueError: no such file"]
