"""The runs of a population's members: ordinary run directories, each with one set of hyper-parameters throughout.

A member that copies another goes on in a new directory, made of the other's checkpoint and the new settings. It gets
its name when it is whole, so weights and hyper-parameters change together or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.system import commit
from thespis.core.types import Array, Episode
from thespis.population.exploit import Hypers
from thespis.population.history import Reached
from thespis.population.search_space import assign
from thespis.runs.checkpoints import Checkpoints, policy_weights, read_meta
from thespis.runs.directory import RunDirectory
from thespis.training.registry import write_config

T = TypeVar("T")
_TRIES = 5


class Members:
    """The directories below `root`. `base`: the settings that all members of architecture `name` share."""

    def __init__(self, root: Path, name: str, base: Experiment) -> None:
        self.root, self.name, self.base = root, name, base

    def path(self, run: str) -> Path:
        return self.root / run

    def config(self, run: str, hypers: Hypers) -> Experiment:
        """Settings of one directory; no two share a seed."""
        member, branch = map(int, run.split("-"))
        words = np.random.SeedSequence(self.base.seed, spawn_key=(member, branch)).generate_state(1, np.uint32)
        return replace(assign(self.base, hypers), seed=int(words[0]), run_dir=self.path(run))

    def checkpoint(self, run: str) -> Path | None:
        """The newest whole checkpoint of a run."""
        return Checkpoints(self.path(run) / "checkpoints", keep=self.base.keep).newest_valid().path

    def weights(self, run: str) -> dict[str, Array] | None:
        """The policy of a run that may be training meanwhile."""

        def read() -> dict[str, Array] | None:
            found = self.checkpoint(run)
            return None if found is None else policy_weights(found)

        return _patiently(read)

    def fork(self, source: str, run: str, hypers: Hypers) -> tuple[Reached, str] | None:
        """A new run that goes on from the newest checkpoint of another; None if that has none."""

        def copy() -> tuple[Reached, str] | None:
            found = self.checkpoint(source)
            return None if found is None else self._copy(found, run, hypers)

        return _patiently(copy)

    def _copy(self, checkpoint: Path, run: str, hypers: Hypers) -> tuple[Reached, str]:
        staging = commit.stage(self.root)
        try:
            copied = staging / "checkpoints" / checkpoint.name
            copied.mkdir(parents=True)
            (staging / "tensorboard").mkdir()
            for file in [*checkpoint.iterdir(), *checkpoint.parent.glob("epoch-*.json")]:
                _link(file, (copied if file.parent == checkpoint else copied.parent) / file.name)
            commit.verify(copied)
            write_config(staging / "config.yaml", self.name, self.config(run, hypers))
            self.clear(run)  # what a controller made that was killed before it could say so
            commit.commit_tree(staging, self.path(run))
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return reached(self.path(run) / "checkpoints" / checkpoint.name), checkpoint.name

    def clear(self, run: str) -> None:
        """Take away a run, or what is left of one."""
        if self.path(run).exists():
            grave = commit.stage(self.root)
            self.path(run).rename(grave / run)
            shutil.rmtree(grave)

    def retire(self, run: str) -> None:
        """Nobody goes on from there; its metrics stay, its checkpoints would only fill the disk."""
        with suppress(OSError):
            shutil.rmtree(self.path(run) / "checkpoints")

    def begun(self, run: str) -> bool:
        """Whether there is a run to resume; a directory without settings is one whose making was cut short."""
        if RunDirectory(self.path(run)).config.is_file():
            return True
        self.clear(run)
        return False


def reached(checkpoint: Path) -> Reached:
    meta = read_meta(checkpoint)
    return Reached(meta["env_steps"], meta["update"], meta["monitor"]["episodes"], meta["time"])


def episodes_since(checkpoint: Path, before: int) -> list[Episode]:
    """The last episodes of a run that ended after its first `before`, as its checkpoint has them."""
    state: dict[str, Any] = read_meta(checkpoint)["monitor"]
    new = min(state["episodes"] - before, len(state["window"]))
    return [Episode(*episode) for episode in state["window"][len(state["window"]) - new :]]


def dropped(checkpoint: Path | None) -> dict[str, int]:
    """What a run had dropped by then, by name."""
    counters = {} if checkpoint is None else read_meta(checkpoint)["monitor"]["counters"]
    return {name: count for name, count in counters.items() if name.startswith("dropped/")}


def _link(source: Path, target: Path) -> None:
    """A committed file never changes, so a second name for it is a copy."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _patiently(look: Callable[[], T]) -> T:
    """A run that trains removes its old checkpoints, perhaps while we read; a newer one is there then."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError, commit.CorruptCheckpoint):
            return look()
    raise ThespisError(f"the checkpoints of a member vanished {_TRIES} times while they were read; raise --keep")
