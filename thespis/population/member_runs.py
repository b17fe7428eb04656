"""The runs of a population's members: ordinary run directories, each with one set of hyper-parameters.

A member that copies another continues in a new directory with the other's checkpoint and new settings. The directory
is renamed into place when it is complete, so weights and hyper-parameters change together or not at all.
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

_T = TypeVar("_T")
_TRIES = 5


class MemberRuns:
    """The run directories below `root`. `base`: the settings that all members of architecture `name` share."""

    def __init__(self, root: Path, name: str, base: Experiment) -> None:
        self.root, self.name, self.base = root, name, base

    def path(self, run: str) -> Path:
        """The directory of a run."""
        return self.root / run

    def config(self, run: str, hypers: Hypers) -> Experiment:
        """The settings of a run. Every run has its own seed."""
        member, branch = map(int, run.split("-"))
        words = np.random.SeedSequence(self.base.seed, spawn_key=(member, branch)).generate_state(1, np.uint32)
        return replace(assign(self.base, hypers), seed=int(words[0]), run_dir=self.path(run))

    def checkpoint(self, run: str) -> Path | None:
        """The newest valid checkpoint of a run; None if there is none."""
        return Checkpoints(self.path(run) / "checkpoints", keep=self.base.keep).newest_valid().path

    def weights(self, run: str) -> dict[str, Array] | None:
        """The newest weights of a run, which may be training at the same time."""

        def read() -> dict[str, Array] | None:
            found = self.checkpoint(run)
            return None if found is None else policy_weights(found)

        return _retry(read)

    def fork(self, source: str, run: str, hypers: Hypers) -> tuple[Reached, str] | None:
        """Create a run that continues from the newest checkpoint of `source`; None if that has none."""

        def copy() -> tuple[Reached, str] | None:
            found = self.checkpoint(source)
            return None if found is None else self._copy(found, run, hypers)

        return _retry(copy)

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
            self.clear(run)  # left by a controller that died before it recorded the copy
            commit.commit_tree(staging, self.path(run))
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return reached(self.path(run) / "checkpoints" / checkpoint.name), checkpoint.name

    def clear(self, run: str) -> None:
        """Delete a run directory, complete or not."""
        if self.path(run).exists():
            trash = commit.stage(self.root)
            self.path(run).rename(trash / run)
            shutil.rmtree(trash)

    def retire(self, run: str) -> None:
        """Delete the checkpoints of a run that no member continues; its metrics stay."""
        with suppress(OSError):
            shutil.rmtree(self.path(run) / "checkpoints")

    def begun(self, run: str) -> bool:
        """Whether there is a run to resume. A directory without settings is incomplete and is deleted."""
        if RunDirectory(self.path(run)).config.is_file():
            return True
        self.clear(run)
        return False


def reached(checkpoint: Path) -> Reached:
    """The progress of a run at a checkpoint."""
    meta = read_meta(checkpoint)
    return Reached(meta["env_steps"], meta["update"], meta["monitor"]["episodes"], meta["time"])


def episodes_since(checkpoint: Path, before: int) -> list[Episode]:
    """The episodes of a run after its first `before`, as far as the checkpoint stores them."""
    state: dict[str, Any] = read_meta(checkpoint)["monitor"]
    new = min(state["episodes"] - before, len(state["window"]))
    return [Episode(*episode) for episode in state["window"][len(state["window"]) - new :]]


def dropped(checkpoint: Path | None) -> dict[str, int]:
    """The counters of dropped items at a checkpoint, by name."""
    counters = {} if checkpoint is None else read_meta(checkpoint)["monitor"]["counters"]
    return {name: count for name, count in counters.items() if name.startswith("dropped/")}


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it. A link is enough because committed files never change."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _retry(read: Callable[[], _T]) -> _T:
    """Retry a read: a running member may delete the checkpoint meanwhile, but then it has a newer one."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError, commit.CorruptCheckpoint):
            return read()
    raise ThespisError(f"the checkpoints of a member vanished {_TRIES} times while they were read; raise --keep")
