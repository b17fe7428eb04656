"""Accept connections on a Unix socket that other users of the machine can also reach.

An abstract socket has no permissions, so any user may connect. The kernel reports the peer's user: a connection of
another user is closed at once and costs one descriptor. Handshakes of this user's processes run concurrently, each
with a time limit, and their number is limited.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

TOKEN_BYTES = 32
"""Length of a run's secret token."""
HANDSHAKE_SECONDS = 5.0
"""Time limit of a handshake; the peer is on this machine."""
PENDING = 64
"""Maximum number of concurrent handshakes. One more cancels the oldest, since a valid one takes milliseconds."""
_BACK_OFF_SECONDS = 0.1
_BACKLOG = 128
_CREDENTIALS = struct.Struct("<3i")  # pid, uid, gid
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that disappear when some process releases resources."""
_ABORTED = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})
"""Errors of `accept` that concern one connection, which is already closed."""


def listen(address: str, kind: socket.SocketKind) -> socket.socket:
    """Listen on a Unix socket in the abstract namespace. It has no file and disappears with its process."""
    listening = socket.socket(socket.AF_UNIX, kind)
    listening.bind(f"\0{address}")
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def connect(address: str, kind: socket.SocketKind, seconds: float) -> socket.socket:
    """Connect to a process of this user at `address`.

    A name in the abstract namespace is free again when its process ends, so another user may bind it. A peer of another
    user is refused before the token of the run is sent.
    """
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.settimeout(seconds)
        sock.connect(f"\0{address}")
        if not same_user(sock):
            raise ConnectionRefusedError(f"{address} belongs to another user")
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(listening: socket.socket, handshake: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Accept connections of this user until cancelled. `handshake` closes connections that it refuses."""
    pending: dict[asyncio.Task[None], None] = {}

    async def limited(peer: socket.socket) -> None:
        with suppress(OSError, ValueError):  # including a timeout
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await handshake(peer)

    async with asyncio.TaskGroup() as group:
        while True:
            peer = await _accept(listening)
            if peer is None:
                continue
            if len(pending) >= PENDING:
                oldest = next(iter(pending))
                del pending[oldest]
                oldest.cancel()
            task = group.create_task(limited(peer))
            pending[task] = None
            task.add_done_callback(lambda done: pending.pop(done, None))


async def _accept(listening: socket.socket) -> socket.socket | None:
    """Return the next connection, or None if it belongs to another user or failed."""
    try:
        peer, _ = await asyncio.get_running_loop().sock_accept(listening)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            await asyncio.sleep(_BACK_OFF_SECONDS)
        elif error.errno not in _ABORTED:
            raise
        return None
    # `sock_accept` does not yield if a connection is already queued. Yield here, so that a flood cannot block the loop.
    try:
        await asyncio.sleep(0)
        known = same_user(peer)
    except BaseException:
        peer.close()
        raise
    if not known:
        peer.close()
        return None
    peer.setblocking(False)
    return peer


async def readable(sock: socket.socket) -> None:
    """Wait until the socket is readable."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


def same_user(peer: socket.socket) -> bool:
    """Return whether the peer of a Unix socket runs as this user."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.geteuid())
