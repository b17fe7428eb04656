"""A direct line between two processes of one machine that do not have the same parent.

They meet at a Unix socket in the abstract namespace, which has no file and goes with its process. It opens only for
the same user, who must also know the run's token; then each side hands the other its shared memory.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable

from thespis.runtime.process import ARENA_BYTES
from thespis.transport import accept
from thespis.transport.connection import Arena, Connection, PeerArena, Received

TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{TOKEN_BYTES}sH")  # token, bytes of the caller's name
_WELCOME = b"\x01"
_SECONDS = 5.0
"""How long the other side may take to introduce itself: it is on this machine."""


class Meeting:
    """One process's end of all its direct lines."""

    def __init__(
        self,
        name: str,
        token: bytes,
        received: Received,
        lost: Callable[[Connection], None],
        joined: Callable[[str, Connection], None],
    ) -> None:
        """`joined` gets the name of each process that comes, and the line to it."""
        self.address = f"thespis-{secrets.token_hex(16)}"
        self._name, self._token, self._received, self._lost, self._joined = name, token, received, lost, joined
        self._memory = os.memfd_create(f"thespis-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, ARENA_BYTES)
        self._arena = Arena(self._memory)
        self._socket = accept.listen(self.address, socket.SOCK_STREAM)

    async def receive(self) -> None:
        """Let others in, for ever. A stranger is turned away and changes nothing."""
        await accept.serve(self._socket, self._greet)

    async def join(self, address: str) -> Connection:
        """A line to the process that waits at `address`. OSError: it is not on this machine, or it is gone."""
        sock, memory = await asyncio.get_running_loop().run_in_executor(None, self._introduce, address)
        return self._line(sock, memory)

    def _line(self, sock: socket.socket, memory: int) -> Connection:
        try:
            peer = PeerArena(memory)
        finally:
            os.close(memory)
        return Connection(sock, self._arena, peer, self._received, self._lost)

    def _introduce(self, address: str) -> tuple[socket.socket, int]:
        sock = accept.connect(address, socket.SOCK_STREAM, _SECONDS)
        try:
            name = self._name.encode()
            socket.send_fds(sock, [_HELLO.pack(self._token, len(name)) + name], [self._memory])
            answer, (memory,), _, _ = socket.recv_fds(sock, len(_WELCOME), 1)
            if answer != _WELCOME:
                raise ConnectionRefusedError(f"{address} did not answer")
        except ValueError as error:
            sock.close()
            raise ConnectionRefusedError(f"{address} turned us away") from error
        except BaseException:
            sock.close()
            raise
        return sock, memory

    async def _greet(self, guest: socket.socket) -> None:
        """Learn who comes, and exchange shared memory; whoever is not of this run is turned away."""
        descriptors: list[int] = []
        try:
            await accept.readable(guest)
            hello, descriptors, _, _ = socket.recv_fds(guest, _HELLO.size + 4096, 1)
            token, length = _HELLO.unpack_from(hello.ljust(_HELLO.size, b"\0"))
            name = hello[_HELLO.size :]
            caller = name.decode()
            known = hmac.compare_digest(token, self._token)
            if not known or len(name) != length or len(descriptors) != 1:
                raise ConnectionRefusedError("not one of this run")
            socket.send_fds(guest, [_WELCOME], [self._memory])
            line = self._line(guest, descriptors.pop())
        except BaseException:
            guest.close()
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        self._joined(caller, line)
