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
from pathlib import Path
from typing import Any

from thespis.errors import ThespisError

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
            if file.name.startswith("."):
                file.unlink()  # a writer killed half way, whose successor wrote the file again
                continue
            files[file.name] = {"sha256": _digest(file), "size": file.stat().st_size}
            _sync(file)
        manifest = staging / MANIFEST
        manifest.write_bytes(to_json({"files": files}))
        _sync(manifest)
        _sync(staging)
        os.rename(staging, path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync(path.parent)


def commit_tree(staging: Path, path: Path) -> None:
    """Give `staging`, with all that is below it, the name `path`, which must be free."""
    for entry in (*staging.rglob("*"), staging):
        _sync(entry)
    os.rename(staging, path)
    _sync(path.parent)


def manifest_of(path: Path) -> dict[str, tuple[str, int]]:
    """(SHA-256, size) by file name, of a committed directory."""
    manifest = path / MANIFEST
    try:
        files = json.loads(manifest.read_bytes())["files"]
        return {str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in files.items()}
    except FileNotFoundError:
        raise CorruptCheckpoint(manifest, "is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CorruptCheckpoint(manifest, "cannot be read") from None


def verify(path: Path, only: Iterable[str] | None = None) -> None:
    """Raise `CorruptCheckpoint` naming the first file of `path` (or of `only` those) that is not as committed."""
    files = manifest_of(path)
    for name in files if only is None else only:
        file = path / name
        try:
            digest, size = files[name]
            if file.stat().st_size != size:
                raise CorruptCheckpoint(file, f"has {file.stat().st_size} bytes instead of {size}")
            if _digest(file) != digest:
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
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    return [leftover.name for leftover in leftovers]


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON that ends in a newline. NaN and infinities become null: JSON has neither, and strict readers stop there."""
    return (json.dumps(_finite(value), indent=indent, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _beside(directory: Path) -> Path:
    return directory / f"{_TEMPORARY}{uuid.uuid4().hex}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
