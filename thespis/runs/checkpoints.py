"""Checkpoints of a run: several processes write one together, and it exists only once it is whole.

    staging = checkpoints.stage()          # by the driver
    save_role(staging, "learner", 0, ...)  # by each role, in its own process
    checkpoints.commit(staging, meta)      # by the driver, when all have answered

Arrays are safetensors, everything else is JSON: opening a stranger's checkpoint runs none of their code.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from thespis.errors import ThespisError
from thespis.runs import commit
from thespis.types import Array, uncut

META = "meta.json"
BEST = "best.json"
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_NAME = re.compile(r"update-(\d{9,})(?:-(\d+))?")


class _Age(NamedTuple):
    """Order of commits, read from the name alone so that damage inside a checkpoint cannot reorder them.

    `branch` rises when training goes on from an older checkpoint: then a lower update is the newer one.
    """

    branch: int
    update: int

    @property
    def name(self) -> str:
        return f"update-{self.update:09d}" + (f"-{self.branch}" if self.branch else "")


@dataclass(frozen=True)
class Found:
    """The checkpoint to resume from, and why each newer one was passed over."""

    path: Path | None
    skipped: list[str] = field(default_factory=list)


class Checkpoints:
    """The committed checkpoints of one run: the newest `keep`, and the one with the highest score."""

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ThespisError(f"keeping {keep} checkpoints leaves nothing to resume from; keep at least 1")
        self.directory = directory
        self.keep = keep
        self._damaged: set[str] = set()

    def stage(self) -> Path:
        """A directory for every role to save its files in; ends in `commit` or `discard`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return commit.stage(self.directory)

    def commit(self, staging: Path, meta: dict[str, Any]) -> Path:
        """Make `staging` the newest checkpoint, then prune. `meta` needs `update`, and may have a `score`.

        Raises `OSError` when the disk is full; the earlier checkpoints are untouched then, as pruning comes last.
        """
        newest = max(self._ages(), default=None)
        age = _Age(0 if newest is None else newest.branch, int(meta["update"]))
        if newest is not None and age.update <= newest.update:
            age = age._replace(branch=newest.branch + 1)
        try:
            (staging / META).write_bytes(commit.to_json(meta))
        except BaseException:
            self.discard(staging)
            raise
        path = self.directory / age.name
        commit.commit_directory(staging, path)
        best = self._find_best()
        if best is not None:
            commit.commit_file(self.directory / BEST, commit.to_json({"name": best.name, "score": _score(best)}))
        self._prune(best)
        return path

    def discard(self, staging: Path) -> None:
        """Give up a checkpoint that some role could not save."""
        shutil.rmtree(staging, ignore_errors=True)

    def newest_valid(self) -> Found:
        """The newest checkpoint whose every digest matches; reads all of its bytes."""
        skipped = []
        for age in sorted(self._ages(), reverse=True):
            path = self.directory / age.name
            try:
                commit.verify(path)
            except commit.CorruptCheckpoint as damage:
                self._damaged.add(age.name)
                skipped.append(f"{age.name}: {damage}")
            else:
                return Found(path, skipped)
        return Found(None, skipped)

    def best(self) -> Path | None:
        """The undamaged checkpoint with the highest score, the newer of equals; None if none has a score."""
        while (path := self._find_best()) is not None:
            try:
                commit.verify(path)
            except commit.CorruptCheckpoint:
                self._damaged.add(path.name)
            else:
                break
        return path

    def _ages(self) -> list[_Age]:
        entries = self.directory.iterdir() if self.directory.is_dir() else ()
        matches = (_NAME.fullmatch(entry.name) for entry in entries)
        return [_Age(int(match[2] or 0), int(match[1])) for match in matches if match]

    def _undamaged(self) -> list[Path]:
        return [self.directory / age.name for age in sorted(self._ages()) if age.name not in self._damaged]

    def _find_best(self) -> Path | None:
        # Read from the checkpoints, not from best.json: a kill between the two would leave the record behind.
        scores = {path: score for path in self._undamaged() if (score := _score(path)) is not None}
        return max(reversed(scores), key=lambda path: scores[path], default=None)

    def _prune(self, best: Path | None) -> None:
        # A damaged checkpoint is none, so it must not push a good one out of the newest `keep`.
        kept = {best, *self._undamaged()[-self.keep :]}
        for age in self._ages():
            path = self.directory / age.name
            if path not in kept:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        # Renamed first: killed half way through, what has a checkpoint's name is still a whole checkpoint.
        grave = commit.stage(self.directory)
        path.rename(grave / path.name)
        shutil.rmtree(grave)


def save_role(staging: Path, role: str, index: int, arrays: Mapping[str, Array], values: dict[str, Any]) -> None:
    """Write what one role needs to go on: `arrays` by name, and JSON `values`. Raises `OSError` on a full disk."""
    stem = f"{role}-{index}"
    (staging / f"{stem}.json").write_text(json.dumps(values))
    _write_arrays(staging / f"{stem}.safetensors", arrays)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """A safetensors file, written straight from the arrays.

    The library's own function makes bytes of every array first, and holds the interpreter while it does.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def load_values(path: Path, role: str, index: int) -> dict[str, Any]:
    """The JSON values alone of what `save_role` wrote; none if the role was not part of the checkpoint."""
    file = path / f"{role}-{index}.json"
    values: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return values


def load_role(path: Path, role: str, index: int) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """What `save_role` wrote, checked against the manifest again; None if the role was not part of the checkpoint.

    The arrays are writable copies.
    """
    stem = f"{role}-{index}"
    names = (f"{stem}.safetensors", f"{stem}.json")
    if not any(name in commit.manifest_of(path) for name in names):
        return None
    commit.verify(path, names)
    return load_file(path / names[0]), json.loads((path / names[1]).read_text())


def policy_weights(path: Path) -> dict[str, Array] | None:
    """The policy's weights by name, from whoever held them: learner, coordinator, controller, or a server's shards.

    `path`: a checkpoint, or one that is being staged. It is not compared with its manifest here.
    """
    for holder in (path / f"{role}-0.safetensors" for role in ("learner", "coordinator", "controller")):
        saved: dict[str, Array] = load_file(holder) if holder.exists() else {}
        weights = {k.removeprefix("weights/"): array for k, array in saved.items() if k.startswith("weights/")}
        if weights:
            return weights
    shards = [path / f"server-{shard}.safetensors" for shard in range(len(list(path.glob("server-*.safetensors"))))]
    held = [load_file(shard) for shard in shards]
    if not held or not all(held):
        return None
    layout = json.loads(shards[0].with_suffix(".json").read_text())["layout"]
    # Where servers keep an average, that is what acts.
    return uncut(np.concatenate([arrays.get("average", arrays["values"]) for arrays in held]), layout)


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` a checkpoint was committed with."""
    meta: dict[str, Any] = json.loads((path / META).read_bytes())
    return meta


def weights_sha256(arrays: Mapping[str, Array]) -> str:
    """One digest over names, dtypes, shapes and bytes: equal exactly when the weights are, to the bit."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _score(path: Path) -> float | None:
    try:
        score = read_meta(path).get("score")
    except (OSError, ValueError, AttributeError):
        return None
    return float(score) if isinstance(score, int | float) else None
