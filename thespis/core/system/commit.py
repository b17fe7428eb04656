"""Atomic writes: a file or directory appears complete under its final name, or not at all. All durable data uses this.

    write next to the target -> fsync -> (manifest -> fsync) -> rename -> fsync of the parent

A kill before the rename leaves a `.tmp-*` entry, which nothing reads and `sweep` removes. A kill after it leaves the
new state. At every moment either the previous or the new state is on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from thespis.core.errors import ThespisError
from thespis.core.system.files import open_regular, read_bytes

MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"
_CHUNK = 1 << 20


class CorruptCheckpoint(ThespisError):
    """A committed file is missing, has the wrong size, or does not match its digest."""

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"{file} {what}; use another checkpoint")
        self.what = f"{file} {what}"


def commit_file(path: Path, data: bytes) -> None:
    """Replace `path` with `data`; a reader sees either all old bytes or all new bytes."""
    temporary = _temporary_path(path.parent)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def overwrite(path: Path, data: bytes) -> None:
    """Replace the content of a small file in place, for a disk without room for a second copy. Not atomic."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stage(directory: Path) -> Path:
    """Create an empty directory below `directory`, in which any process may write files until it is committed."""
    staging = _temporary_path(directory)
    staging.mkdir()
    return staging


def commit_directory(staging: Path, path: Path) -> None:
    """Write a manifest into `staging` and rename it to `path`, which must not exist.

    If this raises, it has removed the staging directory: a failed commit leaves nothing to clean up.
    """
    try:
        files = {}
        for file in sorted(staging.iterdir()):
            if file.name.startswith("."):  # of a writer that was killed or came too late
                _remove(file, staging.parent)
                continue
            with open(file, "rb") as stream:
                files[file.name] = {"sha256": _digest(stream), "size": file.stat().st_size}
            _sync(file)
        manifest = staging / MANIFEST
        manifest.write_bytes(to_json({"files": files}))
        _sync(manifest)
        _sync(staging)
        os.rename(staging, path)
    except BaseException:
        discard(staging)
        raise
    _sync(path.parent)


def commit_tree(staging: Path, path: Path) -> None:
    """Sync the tree `staging` and rename it to `path`, which must not exist."""
    for entry in (*staging.rglob("*"), staging):
        _sync(entry)
    os.rename(staging, path)
    _sync(path.parent)


def discard(entry: Path) -> None:
    """Remove a file or directory, even while other processes write into it; ignore errors."""
    with suppress(OSError):
        _remove(entry, entry.parent)


def manifest_of(path: Path) -> dict[str, tuple[str, int]]:
    """Return (SHA-256, size) by file name of a committed directory. Names with a path separator are refused."""
    manifest = path / MANIFEST
    try:
        files = json.loads(read_bytes(manifest, follow=False))["files"]
        listed = {str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in files.items()}
    except FileNotFoundError:
        raise CorruptCheckpoint(manifest, "is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptCheckpoint(manifest, "cannot be read") from None
    for name in listed:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise CorruptCheckpoint(manifest, f"names {name!r}, which is no file of its directory")
    return listed


def verify(path: Path, only: Iterable[str] | None = None) -> None:
    """Raise `CorruptCheckpoint` for the first file of `path`, or of `only`, that differs from the manifest."""
    files = manifest_of(path)
    for name in files if only is None else only:
        file = path / name
        try:
            digest, size = files[name]
            with open_regular(file, follow=False) as stream:
                found = os.fstat(stream.fileno()).st_size
                if found != size:
                    raise CorruptCheckpoint(file, f"has {found} bytes instead of {size}")
                if _digest(stream) != digest:
                    raise CorruptCheckpoint(file, "does not match its SHA-256")
        except (KeyError, FileNotFoundError):
            raise CorruptCheckpoint(file, "is missing") from None
        except OSError as error:
            raise CorruptCheckpoint(file, f"cannot be read ({error.strerror})") from None


def sweep(directory: Path) -> list[str]:
    """Remove temporary entries that killed processes left in `directory`, and return their names.

    Only the owner of the directory may call this: a staging directory in use looks the same.
    """
    leftovers = sorted(directory.glob(f"{_TEMPORARY}*"))
    for leftover in leftovers:
        discard(leftover)
    return [leftover.name for leftover in leftovers if not os.path.lexists(leftover)]


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """Encode as JSON with a final newline. NaN and infinities become null, because JSON has neither."""
    return (json.dumps(_finite(value), indent=indent, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _remove(entry: Path, directory: Path) -> None:
    """Remove an entry. A directory is first renamed to a temporary name in `directory`.

    A late writer then finds nothing under the old name and cannot add a file to a directory under removal.
    """
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    doomed = _temporary_path(directory)
    entry.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _temporary_path(directory: Path) -> Path:
    return directory / f"{_TEMPORARY}{uuid.uuid4().hex}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
