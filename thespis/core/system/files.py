"""Reading files that somebody else may have made: only regular ones are opened, so nothing is waited for.

Opening a FIFO blocks until somebody writes to it, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LIMIT = 256 << 20
"""Bytes of a file that is read at once. Metrics of a long run have tens of megabytes."""


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file to read; `OSError` if it is no regular file, or with `follow=False` a symbolic link."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, *, follow: bool = True) -> bytes:
    """All of a regular file; `OSError` if it is none, or too long to be what it should be."""
    with open_regular(path, follow=follow) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"it has more than {LIMIT >> 20} MiB", str(path))
    return data


def read_text(path: Path) -> str:
    """All of a regular file as text; bytes that are none are replaced."""
    return read_bytes(path).decode(errors="replace")
