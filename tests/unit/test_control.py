"""The control socket: messages arrive in order, and a process that reads nothing does not block its supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import uvloop

from thespis.runtime.control import Control


def play(coroutine: Any) -> Any:
    """The event loop of a run's processes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def test_a_later_message_does_not_overtake_those_that_came_with_the_first() -> None:
    """Otherwise a starting process would use the connection to a dead neighbour."""

    async def run() -> list[Any]:
        left, right = socket.socketpair()
        supervisor, process = Control(left), Control(right)
        messages: list[Any] = []
        supervisor.send("start")
        supervisor.send("connection to the first incarnation")
        assert process.receive_one() == ("start", [])
        supervisor.send("connection to the second incarnation")
        process.listen(asyncio.get_running_loop(), lambda message, _: messages.append(message))
        while len(messages) < 2:
            await asyncio.sleep(0.001)
        supervisor.close()
        process.close()
        return messages

    assert play(run()) == ["connection to the first incarnation", "connection to the second incarnation"]


def test_a_process_that_reads_nothing_does_not_block_its_supervisor() -> None:
    async def run() -> tuple[list[Any], list[bytes]]:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        supervisor, process = Control(left, loop), Control(right)
        messages: list[Any] = []
        given: list[bytes] = []
        big = "x" * (1 << 20)  # more than the buffer of a socket
        supervisor.send(("start", big))
        read, write = os.pipe()
        supervisor.send("descriptor", [read])
        os.close(read)  # the message keeps its own copy until it is sent
        supervisor.send("last")

        def hear(message: Any, descriptors: list[int]) -> None:
            messages.append(message)
            for descriptor in descriptors:
                given.append(os.read(descriptor, 10))
                os.close(descriptor)

        os.write(write, b"hello")
        os.close(write)
        process.listen(loop, hear)
        while len(messages) < 3:
            await asyncio.sleep(0.001)
        supervisor.close()
        process.close()
        return messages, given

    messages, given = play(run())
    assert [message[0] if isinstance(message, tuple) else message for message in messages] == [
        "start",
        "descriptor",
        "last",
    ]
    assert given == [b"hello"]


def test_what_was_not_sent_is_given_back() -> None:
    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))
        left, right = socket.socketpair()
        supervisor = Control(left, asyncio.get_running_loop())
        supervisor.send("x" * (1 << 20))
        supervisor.send("descriptor", [right.fileno()])
        supervisor.close()
        right.close()
        assert len(os.listdir("/proc/self/fd")) == before

    play(run())
