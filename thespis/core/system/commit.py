"""The only way anything durable reaches the disk: whole under its final name, or not at all.

    write beside the target -> fsync -> (manifest -> fsync) -> rename -> fsync of the parent

A kill before the rename leaves a `.tmp-*` entry that nothing reads and `sweep` removes; a kill after it leaves
the new state. There is no moment at which the previous state is gone and the new one is not there.
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
    """A committed file is missing, has another size, or does not match its digest."""

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"{file} {what}; use another checkpoint")
        self.what = f"{file} {what}"


def commit_file(path: Path, data: bytes) -> None:
    """Replace `path` with `data`; whoever reads it sees all of the old bytes or all of the new ones."""
    temporary = _beside(path.parent)
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
    """Replace the content of a small file in place, on a disk that has no room for another."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stage(directory: Path) -> Path:
    """A new empty directory below `directory` in which any process may write files, until it is committed."""
    staging = _beside(directory)
    staging.mkdir()
    return staging


def commit_directory(staging: Path, path: Path) -> None:
    """Seal `staging` with a manifest and give it the name `path`, which must be free.

    The staging directory is gone afterwards, also when this raises: a failed commit leaves nothing to clean up.
    """
    try:
        files = {}
        for file in sorted(staging.iterdir()):
            if file.name.startswith("."):  # of a writer that was killed half way, or was late
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
    """Give `staging`, with all that is below it, the name `path`, which must be free."""
    for entry in (*staging.rglob("*"), staging):
        _sync(entry)
    os.rename(staging, path)
    _sync(path.parent)


def discard(entry: Path) -> None:
    """Remove an entry that other processes may still be writing into, as far as the file system allows."""
    with suppress(OSError):
        _remove(entry, entry.parent)


def manifest_of(path: Path) -> dict[str, tuple[str, int]]:
    """(SHA-256, size) by file name, of a committed directory. All of the files are in the directory itself."""
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
    """Raise `CorruptCheckpoint` naming the first file of `path` (or of `only` those) that is not as committed."""
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
    """Remove what killed processes left in `directory` and return the names.

    Only for whoever owns the directory: a staging directory in use looks just the same.
    """
    leftovers = sorted(directory.glob(f"{_TEMPORARY}*"))
    for leftover in leftovers:
        discard(leftover)
    return [leftover.name for leftover in leftovers if not os.path.lexists(leftover)]


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON that ends in a newline. NaN and infinities become null: JSON has neither, and strict readers stop there."""
    return (json.dumps(_finite(value), indent=indent, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _remove(entry: Path, directory: Path) -> None:
    """Remove an entry. One that is a directory is first renamed, to a temporary name in `directory`.

    A late writer then finds nothing under the old name, and cannot add a file to a directory that is being removed.
    """
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    grave = _beside(directory)
    entry.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)


def _beside(directory: Path) -> Path:
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
