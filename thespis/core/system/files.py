"""Reads files of unknown origin. Only regular files are opened, so a read never blocks.

Opening a FIFO blocks until a writer opens it, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_FILE_BYTES = 256 << 20
"""The largest file that `read_bytes` reads. Metrics of a long run take tens of megabytes."""


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading; raise `OSError` if it is not regular, or a symbolic link and `follow` is false."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, *, follow: bool = True) -> bytes:
    """Return the content of a regular file; raise `OSError` if it is not regular or exceeds `MAX_FILE_BYTES`."""
    with open_regular(path, follow=follow) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB", str(path))
    return data


def read_text(path: Path) -> str:
    """Return the content of a regular file as text; invalid UTF-8 is replaced."""
    return read_bytes(path).decode(errors="replace")
