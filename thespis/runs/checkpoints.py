"""Checkpoints of a run: several processes write one together, and it exists only once it is complete.

    staging = checkpoints.stage()          # by the driver
    save_role(staging, "learner", 0, ...)  # by each role, in its own process
    checkpoints.commit(staging, meta)      # by the driver, when all have saved

Arrays are safetensors and all other values JSON, so that loading an untrusted checkpoint executes no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from thespis.core.errors import ThespisError, ThespisWarning
from thespis.core.system import commit
from thespis.core.system.files import open_regular, read_bytes
from thespis.core.types import Array, unflatten_parameters

META = "meta.json"
BEST = "best.json"
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_SAVED = "saved"
"""Key in the meta of a checkpoint: the file stems of all roles with a state in it."""
_HOLDERS = "holders"
"""Key in the meta of a checkpoint: the file stems of the roles that hold the policy."""
_NAME = re.compile(r"update-(\d{9,})(?:-(\d+))?")


class _Age(NamedTuple):
    """Commit order, read from the name alone so that damage inside a checkpoint cannot reorder them.

    `branch` rises when training continues from an older checkpoint: a lower update is then newer.
    """

    branch: int
    update: int

    @property
    def name(self) -> str:
        return f"update-{self.update:09d}" + (f"-{self.branch}" if self.branch else "")


@dataclass(frozen=True)
class Found:
    """The checkpoint to resume from, and why each newer one was skipped."""

    path: Path | None
    skipped: list[str] = field(default_factory=list)


class Checkpoints:
    """The committed checkpoints of one run: the newest `keep`, and the one with the highest score."""

    def __init__(
        self, directory: Path, keep: int, required: Sequence[tuple[str, int]] = (), replicated: bool = False
    ) -> None:
        """`required`: roles that hold the weights; a checkpoint without their state is invalid.

        `replicated`: each of them holds all weights, so one is enough.
        """
        if keep < 1:
            raise ThespisError(f"keeping {keep} checkpoints leaves none to resume from; keep at least 1")
        self.directory = directory
        self.keep = keep
        self._required, self._replicated = required, replicated
        self._damaged: set[str] = set()
        self._read: dict[str, str] = {}
        """Names of checkpoints under reading, by reader."""

    def stage(self) -> Path:
        """Make a directory for the files of all roles; end with `commit` or `discard`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return commit.stage(self.directory)

    def commit(self, staging: Path, meta: dict[str, Any]) -> Path:
        """Make `staging` the newest checkpoint, then prune. `meta` needs `update`, and may have a `score`.

        The meta lists the roles that saved, so that a checkpoint with missing files is recognised as incomplete. Raises
        `OSError` on a full disk; the earlier checkpoints are then untouched, because pruning comes last.
        """
        newest = max(self._ages(), default=None)
        age = _Age(0 if newest is None else newest.branch, int(meta["update"]))
        if newest is not None and age.update <= newest.update:
            age = age._replace(branch=newest.branch + 1)
        try:
            saved = sorted(file.stem for file in staging.glob("[!.]*.safetensors"))
            stems = [f"{role}-{index}" for role, index in self._required]
            holders = {_HOLDERS: [stem for stem in stems if stem in saved or not self._replicated]} if stems else {}
            (staging / META).write_bytes(commit.to_json({**meta, _SAVED: saved, **holders}))
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
        """Remove a staging directory that some role could not save into."""
        commit.discard(staging)

    def newest_valid(self) -> Found:
        """The newest complete checkpoint with matching digests; reads all of its bytes."""
        return self._first_valid(self.directory / age.name for age in sorted(self._ages(), reverse=True))

    def reserve(self, reader: str, path: Path) -> None:
        """Keep a checkpoint from being pruned until `release(reader)`."""
        self._read[reader] = path.name

    def reserve_newest(self, reader: str) -> Found:
        """Find and reserve the newest valid checkpoint, so that no commit in between prunes it."""
        found = self.newest_valid()
        if found.path is not None:
            self.reserve(reader, found.path)
        return found

    def release(self, reader: str) -> None:
        """End the reader's reservation, if any."""
        self._read.pop(reader, None)

    def best_valid(self) -> Found:
        """The undamaged checkpoint with the highest score, the newer of equals; none if none has a score."""
        return self._first_valid(iter(self._find_best, None))

    def require(self, which: str) -> Path:
        """The `newest` or the `best` undamaged checkpoint; warns of damaged ones that it skipped."""
        found = self.best_valid() if which == "best" else self.newest_valid()
        damage = "; ".join(found.skipped)
        if found.path is None:
            raise ThespisError(f"{self.directory.parent} has no valid checkpoint" + (f" ({damage})" if damage else ""))
        if damage:
            warnings.warn(f"using {found.path.name}, because {damage}", ThespisWarning, stacklevel=3)
        return found.path

    def _first_valid(self, paths: Iterable[Path]) -> Found:
        """The first undamaged checkpoint. `paths` yields the next only after the last is marked as damaged."""
        skipped = []
        for path in paths:
            try:
                _verify(path, self._required, self._replicated)
            except commit.CorruptCheckpoint as damage:
                self._damaged.add(path.name)
                skipped.append(f"{path.name}: {damage.what}")
            else:
                return Found(path, skipped)
        return Found(None, skipped)

    def _ages(self) -> list[_Age]:
        entries = self.directory.iterdir() if self.directory.is_dir() else ()
        matches = (_NAME.fullmatch(entry.name) for entry in entries)
        return [_Age(int(match[2] or 0), int(match[1])) for match in matches if match]

    def _undamaged(self) -> list[Path]:
        return [self.directory / age.name for age in sorted(self._ages()) if age.name not in self._damaged]

    def _find_best(self) -> Path | None:
        # Read the scores from the checkpoints: a kill during a commit can leave best.json outdated.
        scores = {path: score for path in self._undamaged() if (score := _score(path)) is not None}
        return max(reversed(scores), key=lambda path: scores[path], default=None)

    def _prune(self, best: Path | None) -> None:
        # A damaged checkpoint must not push a valid one out of the newest `keep`.
        kept = {best, *self._undamaged()[-self.keep :], *(self.directory / name for name in list(self._read.values()))}
        for age in self._ages():
            path = self.directory / age.name
            if path not in kept:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        # Rename first: after a kill, every directory with a checkpoint's name is still complete.
        trash = commit.stage(self.directory)
        path.rename(trash / path.name)
        shutil.rmtree(trash)


def save_role(staging: Path, role: str, index: int, arrays: Mapping[str, Array], values: dict[str, Any]) -> None:
    """Write one role's state: `arrays` by name, and JSON `values`. Raises `OSError` on a full disk."""
    stem = f"{role}-{index}"
    (staging / f"{stem}.json").write_text(json.dumps(values))
    _write_arrays(staging / f"{stem}.safetensors", arrays)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a safetensors file directly from the arrays.

    The library's own function first copies every array to bytes, and holds the interpreter lock meanwhile.
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


def carry_over(earlier: Path, staging: Path, role: str, index: int) -> bool:
    """Copy a role's state from an earlier checkpoint into a staging directory; False if there is none."""
    saved = [file for file in _files(earlier, role, index) if file.exists()]
    for file in saved:
        try:
            os.link(file, staging / file.name)  # committed files never change, so a hard link is safe
        except OSError:
            shutil.copyfile(file, staging / file.name)
    return bool(saved)


def saved(path: Path, role: str, index: int) -> bool:
    """Whether a role has written its state there."""
    return all(file.exists() for file in _files(path, role, index))


def _files(path: Path, role: str, index: int) -> tuple[Path, Path]:
    return path / f"{role}-{index}.safetensors", path / f"{role}-{index}.json"


def load_values(path: Path, role: str, index: int) -> dict[str, Any]:
    """The JSON values alone of a role's state; empty if the role was not part of the checkpoint."""
    file = path / f"{role}-{index}.json"
    return _load_json(file) if file.exists() else {}


def load_role(path: Path, role: str, index: int) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """The state that `save_role` wrote, verified against the manifest; None if the role was not part of the checkpoint.

    The arrays are writable copies.
    """
    stem = f"{role}-{index}"
    names = (f"{stem}.safetensors", f"{stem}.json")
    if not any(name in commit.manifest_of(path) for name in names):
        return None
    commit.verify(path, names)
    return load_arrays(path / names[0]), _load_json(path / names[1])


def policy_weights(path: Path, holders: Sequence[tuple[str, int]] | None = None) -> dict[str, Array] | None:
    """The policy's weights by name, from the first role with complete weights, or from all roles with slices.

    `path`: a checkpoint or a staging directory; its manifest is not checked here. `holders`: roles in the order of
    their slices; a committed checkpoint names them itself.
    """
    stems = _holders(path) if holders is None else [f"{role}-{index}" for role, index in holders]
    files = {stem: path / f"{stem}.safetensors" for stem in stems}
    whole = [stem for stem, file in files.items() if file.exists() and _holds_policy(_array_names(file))]
    if whole:
        arrays = load_arrays(files[_newest(path, whole)])
        return {k.removeprefix("weights/"): array for k, array in arrays.items() if k.startswith("weights/")}
    slices = []
    for file in files.values():
        saved = load_arrays(file) if file.exists() else {}
        # Actors act on the average, if servers keep one.
        slices.append(saved.get("average", saved.get("values")))
    values = [each for each in slices if each is not None]
    if not values or len(values) < len(slices):
        return None
    return unflatten_parameters(np.concatenate(values), _load_json(path / f"{stems[0]}.json")["layout"])


def _holders(path: Path) -> list[str]:
    """The file stems of the roles that hold the policy.

    Checkpoints of earlier versions do not name them: then they are the roles with a policy's arrays.
    """
    meta, files = _load_json(path / META), list(path.glob("[!.]*.safetensors"))
    if isinstance(meta.get(_HOLDERS), list):
        own = {file.stem for file in files}
        return list(meta[_HOLDERS]) if own.issuperset(map(str, meta[_HOLDERS])) else []
    names = {file.stem: _array_names(file) for file in files}
    whole = sorted(stem for stem, arrays in names.items() if _holds_policy(arrays))
    slices = [stem for stem, arrays in names.items() if "values" in arrays]
    return whole or sorted(slices, key=lambda stem: int(stem.rpartition("-")[2]))


def _holds_policy(arrays: Iterable[str]) -> bool:
    return any(name.startswith("weights/") for name in arrays)


def newest_replica(path: Path, role: str, index: int) -> int:
    """The index of the role of this name with the most updates, `index` if no other one has more."""
    others = [file.stem for file in path.glob(f"{role}-*.json") if file.stem.removeprefix(f"{role}-").isdecimal()]
    stems = [f"{role}-{index}", *sorted(others)]
    return int(_newest(path, stems).removeprefix(f"{role}-"))


def _newest(path: Path, stems: Sequence[str]) -> str:
    """The first of the roles with the most updates."""
    if len(stems) == 1:
        return stems[0]
    files = {stem: path / f"{stem}.json" for stem in stems}
    updates = {stem: _load_json(file).get("updates", 0) if file.exists() else -1 for stem, file in files.items()}
    return max(stems, key=lambda stem: updates[stem])


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` that a checkpoint was committed with."""
    meta = _load_json(path / META)
    for name in (_SAVED, _HOLDERS):
        meta.pop(name, None)
    return meta


def _verify(path: Path, required: Sequence[tuple[str, int]], replicated: bool) -> None:
    """Raise `CorruptCheckpoint` unless all files are as committed, and no saved or required role is missing.

    `replicated`: one of the required roles is enough, also one that is no longer part of the program.
    """
    commit.verify(path)
    files = commit.manifest_of(path)
    if META not in files:
        raise commit.CorruptCheckpoint(path / META, "is missing")
    saved = _load_json(path / META).get(_SAVED)  # checkpoints of earlier versions have none
    stems = [*map(str, saved)] if isinstance(saved, list) else []
    needed = [f"{role}-{index}" for role, index in required]
    if not replicated or not any(f"{stem}.json" in files for stem in needed):
        stems += needed
    for stem in stems:
        for name in (f"{stem}.safetensors", f"{stem}.json"):
            if name not in files:
                raise commit.CorruptCheckpoint(path / name, "is missing")


def load_arrays(file: Path) -> dict[str, Array]:
    """The arrays of a safetensors file, as writable copies."""
    with _reading(file):
        arrays: dict[str, Array] = load_file(file)
    return arrays


def _array_names(file: Path) -> list[str]:
    """The array names of a safetensors file; reads only its header."""
    with _reading(file), safe_open(file, "numpy") as arrays:
        return list(arrays.keys())


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        open_regular(file, follow=False).close()  # the library would block on a FIFO
        yield
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise commit.CorruptCheckpoint(file, f"cannot be read ({error})") from None


def _load_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_bytes(file, follow=False))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise commit.CorruptCheckpoint(file, f"cannot be read ({error})") from None
    return values


def weights_sha256(arrays: Mapping[str, Array]) -> str:
    """One digest over names, dtypes, shapes and bytes: equal exactly when the weights are bit-equal."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # a copy would block the other threads
    return digest.hexdigest()


def _score(path: Path) -> float | None:
    try:
        score = read_meta(path).get("score")
    except (FileNotFoundError, commit.CorruptCheckpoint):
        return None
    return float(score) if isinstance(score, int | float) else None
