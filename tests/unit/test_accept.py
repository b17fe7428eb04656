"""Sockets that other users can reach: their connections are closed, and neither stop nor delay the server."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import subprocess
import sys
from typing import Any

import pytest
from inference_hall import Hall, play

from thespis.runtime import rendezvous
from thespis.runtime.rendezvous import Rendezvous
from thespis.transport import accept
from thespis.transport.connection import Connection

pytestmark = pytest.mark.timeout(60)
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
held = []
for _ in range({number}):
    sock = socket.socket(socket.AF_UNIX, socket.{kind})
    sock.connect("\\0{address}")
    held.append(sock)
print("connected", flush=True)
print(sum(sock.recv(1) == b"" for sock in held), "closed", flush=True)
sys.stdin.read()
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def strangers(address: str, number: int, kind: str = "SOCK_SEQPACKET") -> Any:
    """Start another user's process that opens connections and sends nothing; wait until all are closed."""
    script = STRANGER.format(nobody=NOBODY, number=number, kind=kind, address=address)
    there = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert there.stdout is not None
    assert await there.stdout.readline() == b"connected\n"
    assert await there.stdout.readline() == f"{number} closed\n".encode()
    return there


@needs_root
def test_a_connection_of_another_user_is_closed_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 3600.0)  # the timeout must not be what closes them

    async def script(made: Hall) -> None:
        await made.client(0)(*made.message(0))
        before = descriptors()
        there = await strangers(made.server._listener._address, 200)  # type: ignore[union-attr]
        assert descriptors() - before < 10
        await made.client(1)(*made.message(1))  # meanwhile an actor can connect
        there.stdin.close()
        await there.wait()

    play(script, shared_memory=True)


def test_the_kernel_reports_the_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without root: the test pretends that this process is another user."""
    one, other = socket.socketpair()
    with one, other:
        assert accept.same_user(one)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not accept.same_user(one)


def test_the_token_is_not_sent_to_another_user_who_took_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"thespis-{secrets.token_hex(16)}"
    with accept.listen(address, socket.SOCK_STREAM):
        accept.connect(address, socket.SOCK_STREAM, 1.0).close()
        monkeypatch.setattr(accept, "same_user", lambda peer: False)
        with pytest.raises(ConnectionRefusedError, match="another user"):
            accept.connect(address, socket.SOCK_STREAM, 1.0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
def test_listening_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(accept, "_BACK_OFF_SECONDS", 0.001)

    async def script(made: Hall) -> None:
        loop = asyncio.get_running_loop()
        real, left = loop.sock_accept, 3

        async def failing(listening: socket.socket) -> Any:
            nonlocal left
            if left:
                left -= 1
                raise OSError(number, os.strerror(number))
            return await real(listening)

        monkeypatch.setattr(loop, "sock_accept", failing)
        await made.client(0)(*made.message(0))
        assert not left

    play(script, shared_memory=True)


def test_no_descriptor_for_an_actors_memory_turns_only_that_actor_away(monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.memfd_create, 2

    def failing(*args: Any) -> int:
        nonlocal left
        if args[0] == "thespis-inference" and left:
            left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*args)

    monkeypatch.setattr(os, "memfd_create", failing)

    async def script(made: Hall) -> None:
        await made.client(0)(*made.message(0))  # a new attempt

    play(script, shared_memory=True)
    assert not left


def test_silent_callers_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PENDING", 3)
    address = f"thespis-{secrets.token_hex(16)}"
    open_ones, began = list[socket.socket](), 0

    async def handshake(peer: socket.socket) -> None:
        nonlocal began
        began += 1
        open_ones.append(peer)
        try:
            await accept.readable(peer)
        finally:
            open_ones.remove(peer)
            peer.close()

    async def script() -> None:
        with accept.listen(address, socket.SOCK_STREAM) as listening:
            serving = asyncio.create_task(accept.serve(listening, handshake))
            callers = [accept.connect(address, socket.SOCK_STREAM, 5.0) for _ in range(10)]
            while began < 10:
                await asyncio.sleep(0.001)
            for _ in range(10):  # turns of the event loop for the cancelled handshakes
                await asyncio.sleep(0)
            assert len(open_ones) == 3
            monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 0.01)
            callers.append(accept.connect(address, socket.SOCK_STREAM, 5.0))
            callers[-1].setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(callers[-1], 1) == b""
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            for caller in callers:
                caller.close()

    asyncio.run(script())


def test_three_silent_callers_do_not_delay_a_direct_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 3600.0)
    monkeypatch.setattr(rendezvous, "ARENA_BYTES", 1 << 16)
    token, joined = secrets.token_bytes(accept.TOKEN_BYTES), dict[str, Connection]()

    def listener(name: str) -> Rendezvous:
        return Rendezvous(name, token, lambda *_: None, lambda _: None, joined.__setitem__)

    async def script() -> None:
        server, client = listener("server"), listener("client")
        serving = asyncio.create_task(server.receive())
        silent = [accept.connect(server.address, socket.SOCK_STREAM, 5.0) for _ in range(3)]
        connection = await client.join(server.address)
        assert list(joined) == ["client"]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for end in (connection, joined["client"]):
            end.close()
        for sock in (*silent, server._socket, client._socket):
            sock.close()
        await asyncio.sleep(0)

    asyncio.run(script())
