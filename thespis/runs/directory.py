"""Where a run keeps its files, and the claim that no other run writes there."""

from __future__ import annotations

import errno
import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

from thespis.errors import ThespisError
from thespis.runs.commit import commit_file, sweep, to_json


class RunDirectory:
    """The paths of one run. Scripts rely on these names, so they never change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.topology = path / "topology.json"
        self.log = path / "log.txt"
        self.summary = path / "summary.json"
        self._made: list[Path] = []

    @classmethod
    def create(
        cls, architecture: str, env: str, seed: int, path: Path | None = None, root: Path = Path("runs")
    ) -> RunDirectory:
        """Claim `path`, or the first free `<root>/<architecture>-<env>-s<seed>-<n>`; refusals leave nothing behind."""
        if path is not None:
            return cls._claim(path)
        stem = re.sub(r"[^\w.+-]", "-", f"{architecture}-{env}-s{seed}")
        number = 1
        while True:
            try:
                return cls._claim(root / f"{stem}-{number}", new=True)
            except FileExistsError:
                number += 1

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run, unchanged by opening it, so that looking at a live run is safe."""
        run = cls(path)
        if not run.config.is_file():
            raise ThespisError(f"{path} holds no run (no config.yaml); give a directory that `thespis train` made")
        return run

    def sweep(self) -> list[str]:
        """Remove what a killed process left half written; only for the process that is about to resume the run."""
        return [*sweep(self.path), *(sweep(self.checkpoints) if self.checkpoints.is_dir() else ())]

    def discard(self) -> None:
        """Take back a run that never took a step: what is in it, and the directories that were made for it."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for directory in reversed(self._made):
            with suppress(OSError):  # it was there before, or another run lives in it by now
                directory.rmdir()

    def next_epoch(self, role: str = "learner") -> int:
        """0, 1, 2, ... one higher at every call, on disk before it is returned.

        A restored learner takes one before it publishes, so its weights always look newer than a lost one's.
        """
        file = self.checkpoints / f"epoch-{role}.json"
        try:
            epoch = int(json.loads(file.read_bytes())["epoch"]) + 1
        except FileNotFoundError:
            epoch = 0
        except (ValueError, KeyError, TypeError):
            # Starting again at 0 would make actors refuse every new weight.
            raise ThespisError(f'{file} cannot be read; write {{"epoch": N}} with N above any earlier one') from None
        commit_file(file, to_json({"epoch": epoch}))
        return epoch

    @classmethod
    def _claim(cls, path: Path, new: bool = False) -> RunDirectory:
        """Make the directory and its two folders; `new` raises `FileExistsError` where something already stands."""
        run = cls(path)
        made = run._made
        try:
            for parent in reversed(path.parents):
                _make(parent, made)
            if not _make(path, made):
                if new:
                    raise FileExistsError
                if any(path.iterdir()):
                    raise ThespisError(f"{path} is not empty; give another --run-dir or `thespis resume {path}`")
            _make(run.checkpoints, made)
            _make(run.tensorboard, made)
        except BaseException as error:
            for directory in reversed(made):
                with suppress(OSError):
                    directory.rmdir()
            if isinstance(error, OSError) and not isinstance(error, FileExistsError):
                raise ThespisError(f"cannot make {path} ({error.strerror}); give another --run-dir") from None
            raise
        return run


def _make(directory: Path, made: list[Path]) -> bool:
    """Make one directory and note it in `made`; False if it was there.

    `mkdir` is atomic, so two runs never both get True.
    """
    try:
        directory.mkdir()
    except FileExistsError:
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(directory)) from None
        return False
    except OSError:
        if directory.is_dir():  # a parent on a read-only mount refuses with another error although it exists
            return False
        raise
    made.append(directory)
    return True
