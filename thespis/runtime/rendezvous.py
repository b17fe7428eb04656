"""Direct connections between processes of one machine that do not have the same parent.

Each process listens on a Unix socket in the abstract namespace. It accepts processes of the same user that know the
run's token; then both sides exchange their shared memory.
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
from thespis.transport.accept import TOKEN_BYTES
from thespis.transport.arena import Arena, PeerArena
from thespis.transport.connection import Connection, Received

_HELLO = struct.Struct(f"<{TOKEN_BYTES}sH")  # token, bytes of the caller's name
_WELCOME = b"\x01"
_HANDSHAKE_SECONDS = 5.0
"""Time limit of the handshake; the peer is on this machine."""


class Rendezvous:
    """Listens for direct connections of other processes, and connects to them."""

    def __init__(
        self,
        name: str,
        token: bytes,
        received: Received,
        lost: Callable[[Connection], None],
        joined: Callable[[str, Connection], None],
    ) -> None:
        """`joined` is called with the name and the connection of each process that connects."""
        self.address = f"thespis-{secrets.token_hex(16)}"
        self._name, self._token, self._received, self._lost, self._joined = name, token, received, lost, joined
        self._memory = os.memfd_create(f"thespis-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, ARENA_BYTES)
        self.arena = Arena(self._memory)
        self._socket = accept.listen(self.address, socket.SOCK_STREAM)

    async def receive(self) -> None:
        """Accept connections until cancelled. A refused connection does not end this."""
        await accept.serve(self._socket, self._accept)

    async def join(self, address: str) -> Connection:
        """Connect to the process at `address`. Raises OSError if it is on another machine or gone."""
        sock, memory = await asyncio.get_running_loop().run_in_executor(None, self._connect, address)
        return self._build_connection(sock, memory)

    def _build_connection(self, sock: socket.socket, memory: int) -> Connection:
        try:
            peer = PeerArena(memory)
        finally:
            os.close(memory)
        return Connection(sock, self.arena, peer, self._received, self._lost)

    def _connect(self, address: str) -> tuple[socket.socket, int]:
        sock = accept.connect(address, socket.SOCK_STREAM, _HANDSHAKE_SECONDS)
        try:
            name = self._name.encode()
            socket.send_fds(sock, [_HELLO.pack(self._token, len(name)) + name], [self._memory])
            answer, (memory,), _, _ = socket.recv_fds(sock, len(_WELCOME), 1)
            if answer != _WELCOME:
                raise ConnectionRefusedError(f"{address} did not answer")
        except ValueError as error:
            sock.close()
            raise ConnectionRefusedError(f"{address} refused the connection") from error
        except BaseException:
            sock.close()
            raise
        return sock, memory

    async def _accept(self, client: socket.socket) -> None:
        """Authenticate a client and exchange shared memory; refuse a client without the token of the run."""
        descriptors: list[int] = []
        try:
            await accept.readable(client)
            hello, descriptors, _, _ = socket.recv_fds(client, _HELLO.size + 4096, 1)
            token, length = _HELLO.unpack_from(hello.ljust(_HELLO.size, b"\0"))
            name = hello[_HELLO.size :]
            caller = name.decode()
            known = hmac.compare_digest(token, self._token)
            if not known or len(name) != length or len(descriptors) != 1:
                raise ConnectionRefusedError("not a process of this run")
            socket.send_fds(client, [_WELCOME], [self._memory])
            connection = self._build_connection(client, descriptors.pop())
        except BaseException:
            client.close()
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        self._joined(caller, connection)
