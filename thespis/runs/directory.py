"""RunDirectory: the files of a run, and its claim that no other run writes there."""

from __future__ import annotations

import errno
import json
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from thespis.core.errors import ThespisError
from thespis.core.system.commit import commit_file, overwrite, sweep, to_json
from thespis.core.system.files import read_bytes


class RunDirectory:
    """The paths of one run. Scripts rely on these names, so they never change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.spaces = path / "spaces.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.topology = path / "topology.json"
        self.log = path / "log.txt"
        self.summary = path / "summary.json"
        self._made: list[Path] = []
        self._epochs: dict[str, int] = {}
        self._kept: tuple[int, bytes] | None = None

    @classmethod
    def create(
        cls, architecture: str, env: str, seed: int, path: Path | None = None, root: Path = Path("runs")
    ) -> RunDirectory:
        """Claim `path`, or the first free `<root>/<architecture>-<env>-s<seed>-<n>`; a refusal leaves no files."""
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
        """Open an existing run without changing it, so that reading a live run is safe."""
        run = cls(path)
        if not run.config.is_file():
            raise ThespisError(f"{path} holds no run (no config.yaml); give a directory that `thespis train` made")
        run._refuse_links()
        return run

    def _refuse_links(self) -> None:
        """Refuse a link or a device among the run's files: writing there would change files elsewhere."""
        directories = (self.checkpoints, self.tensorboard)
        for path in vars(self).values():
            if not isinstance(path, Path) or path == self.path:
                continue
            kind, what = (stat.S_IFDIR, "directory") if path in directories else (stat.S_IFREG, "file")
            with suppress(FileNotFoundError):
                if stat.S_IFMT(path.lstat().st_mode) != kind:
                    raise ThespisError(f"{path} must be a {what}, not a link or device; replace it by a {what}")

    def sweep(self) -> list[str]:
        """Remove partial files of killed processes, also in the runs of a population's members.

        Only the run's driver may call this, while no other process of the run exists.
        """
        members = self.path / "members"
        directories = [d for d in (self.path, self.checkpoints, members) if d.is_dir() and not d.is_symlink()]
        swept = [name for directory in directories for name in sweep(directory)]
        if members in directories:
            swept += [name for member in sorted(members.iterdir()) for name in RunDirectory(member).sweep()]
        return swept

    def tidy(self) -> None:
        """Sweep at the end of the run, unless the directory has been replaced."""
        with suppress(OSError):
            if not self.is_gone():
                self.sweep()

    def discard(self) -> None:
        """Delete a run that never took a step: its files, and the directories made for it."""
        for entry in list(self.path.iterdir()) if self.path.is_dir() else ():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for directory in reversed(self._made):
            with suppress(OSError):  # another run uses it by now
                directory.rmdir()

    def next_epoch(self, role: str) -> int:
        """Return 0, 1, 2, ... one higher at every call, on disk before it returns.

        A restored learner takes an epoch before it publishes, so its weights always have a newer version than lost
        ones.
        """
        file = self.checkpoints / f"epoch-{role}.json"
        try:
            epoch = int(json.loads(read_bytes(file, follow=False))["epoch"]) + 1
        except FileNotFoundError:
            epoch = self._epochs.get(role, -1) + 1
        except (OSError, ValueError, KeyError, TypeError):
            # Restarting at 0 would make actors refuse all new weights.
            raise ThespisError(f'{file} cannot be read; write {{"epoch": N}} with N above any earlier one') from None
        data = to_json({"epoch": epoch})
        try:
            commit_file(file, data)
        except OSError:
            # A full disk has no room for a second file, but the existing one already has its block.
            if not file.exists():
                raise
            overwrite(file, data)
        self._epochs[role] = epoch
        return epoch

    def keep(self) -> None:
        """Remember the directory's inode and settings, for `is_gone` and `make_again`."""
        self._kept = self.path.stat().st_ino, self.config.read_bytes() if self.config.exists() else b""

    def is_gone(self) -> bool:
        """Whether the directory was deleted or moved since `keep`."""
        try:
            return self._kept is not None and self.path.stat().st_ino != self._kept[0]
        except FileNotFoundError:
            return True
        except OSError:
            return False  # temporarily unreachable, as on a network

    def make_again(self) -> None:
        """Recreate a deleted directory, with the settings of the run."""
        assert self._kept is not None
        for directory in (self.path, self.checkpoints, self.tensorboard):
            directory.mkdir(parents=True, exist_ok=True)
        if self._kept[1]:
            commit_file(self.config, self._kept[1])
        self.keep()

    @classmethod
    def _claim(cls, path: Path, new: bool = False) -> RunDirectory:
        """Make the directory and its two subdirectories; `new` raises `FileExistsError` if the path exists."""
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
            if isinstance(error, OSError | ValueError) and not isinstance(error, FileExistsError):
                reason = getattr(error, "strerror", None) or error  # ValueError: a null character
                raise ThespisError(f"cannot make {path} ({reason}); give another --run-dir") from None
            raise
        return run


def _make(directory: Path, made: list[Path]) -> bool:
    """Make one directory and note it in `made`; False if it exists.

    `mkdir` is atomic, so two runs never both get True.
    """
    try:
        directory.mkdir()
    except FileExistsError:
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(directory)) from None
        return False
    except OSError:
        if directory.is_dir():  # a parent on a read-only mount raises another error although it exists
            return False
        raise
    made.append(directory)
    return True
