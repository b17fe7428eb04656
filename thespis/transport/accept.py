"""Accepting connections on a Unix socket that other users of the machine can reach, too.

An abstract socket has no permissions, so anybody may connect. The kernel says whose process the peer is: a stranger's
connection is closed at once, before it costs more than the descriptor it came with. Handshakes of this user's processes
run side by side, each for a limited time, and only so many at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

HANDSHAKE_SECONDS = 5.0
"""How long a peer may take to say who it is: it is on this machine."""
PENDING = 64
"""Handshakes at a time. One more ends the oldest, since an honest one takes milliseconds."""
_BACK_OFF_SECONDS = 0.1
_BACKLOG = 128
_CREDENTIALS = struct.Struct("<3i")  # pid, uid, gid
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that pass when somebody lets go of something."""
_ABORTED = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})
"""Errors of `accept` that concern one connection, which is gone."""


def listen(address: str, kind: socket.SocketKind) -> socket.socket:
    """A listening Unix socket in the abstract namespace, which has no file and goes with its process."""
    listening = socket.socket(socket.AF_UNIX, kind)
    listening.bind(f"\0{address}")
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def connect(address: str, kind: socket.SocketKind, seconds: float) -> socket.socket:
    """A connection to this user's process at `address`.

    A name in the abstract namespace is free again when its process ends, so a stranger may have taken it. The token of
    the run is not for them: they are refused before anything is sent.
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
    """Accept connections of this user, for ever. `handshake` closes the ones it refuses, also when it is cancelled."""
    pending: dict[asyncio.Task[None], None] = {}

    async def limited(peer: socket.socket) -> None:
        with suppress(OSError, ValueError):  # a timeout among them
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
    """The next connection, or None if it is a stranger's or came to nothing."""
    try:
        peer, _ = await asyncio.get_running_loop().sock_accept(listening)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            await asyncio.sleep(_BACK_OFF_SECONDS)
        elif error.errno not in _ABORTED:
            raise
        return None
    # A connection that waits already is accepted without a turn of the event loop: a flood must not hold up the others.
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
    """Wait until there is something to read."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(sock)


def same_user(peer: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is this user's."""
    told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.geteuid())
