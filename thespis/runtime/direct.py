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
from contextlib import suppress

from thespis.runtime.process import ARENA_BYTES
from thespis.runtime.transport import Arena, Connection, PeerArena, Received

TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{TOKEN_BYTES}sH")  # token, bytes of the caller's name
_CREDENTIALS = struct.Struct("<3i")  # pid, uid, gid
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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(128)
        self._socket.setblocking(False)

    async def receive(self) -> None:
        """Let others in, for ever. A stranger is turned away and changes nothing."""
        loop = asyncio.get_running_loop()
        while True:
            guest, _ = await loop.sock_accept(self._socket)
            with suppress(OSError, ValueError):
                name, memory = await loop.run_in_executor(None, self._greet, guest)
                self._joined(name, self._line(guest, memory))

    async def join(self, address: str) -> Connection:
        """A line to the process that waits at `address`. OSError: it is not on this machine, or it is gone."""
        sock, memory = await asyncio.get_running_loop().run_in_executor(None, self._introduce, address)
        return self._line(sock, memory)

    def _line(self, sock: socket.socket, memory: int) -> Connection:
        peer = PeerArena(memory)
        os.close(memory)
        return Connection(sock, self._arena, peer, self._received, self._lost)

    def _introduce(self, address: str) -> tuple[socket.socket, int]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_SECONDS)
            sock.connect(f"\0{address}")
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

    def _greet(self, guest: socket.socket) -> tuple[str, int]:
        """Who comes, and their shared memory. ValueError: not one of this run."""
        descriptors: list[int] = []
        try:
            guest.settimeout(_SECONDS)
            hello, descriptors, _, _ = socket.recv_fds(guest, _HELLO.size + 4096, 1)
            token, length = _HELLO.unpack_from(hello.ljust(_HELLO.size, b"\0"))
            name = hello[_HELLO.size :]
            known = same_user(guest) and hmac.compare_digest(token, self._token)
            if not known or len(name) != length or len(descriptors) != 1:
                raise ValueError("not one of this run")
            socket.send_fds(guest, [_WELCOME], [self._memory])
            return name.decode(), descriptors[0]
        except BaseException:
            guest.close()
            for descriptor in descriptors:
                os.close(descriptor)
            raise


def same_user(guest: socket.socket) -> bool:
    """Whether a process at the other end of a Unix socket is this user's."""
    told = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.getuid())
