"""Runs a plan, one run after the other; what is finished stays, whatever becomes of the rest."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError
from thespis.report.plan import FINISHED, Plan
from thespis.runs.directory import RunDirectory
from thespis.runs.ending import spent, training_return
from thespis.training.launch import launch
from thespis.training.run import RunFailed, Trained


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end, and why."""

    architecture: str
    seed: int
    error: str


def perform(plan: Plan, say: Callable[[str], None], quiet: bool = False) -> tuple[list[Failure], bool]:
    """Run what is not there yet. Returns what failed, and whether somebody interrupted it."""
    failures: list[Failure] = []
    runs = plan.runs()
    with _claim(plan.out):
        for number_, (name, seed) in enumerate(runs, 1):
            label = f"[{number_}/{len(runs)}] {name}, seed {seed}"
            if _done(plan, name, seed):
                say(f"{label}: is there already, {told(Trained(plan.path(name, seed)).summary)}")
                continue
            say(f"{label}: running for {plan.budget}")
            _clear(plan.path(name, seed))
            try:
                summary = launch(name, plan.config(name, seed), quiet=quiet).summary
            except (RunFailed, ThespisError) as error:
                failures.append(Failure(name, seed, str(error).splitlines()[0]))
                say(f"{label}: failed: {failures[-1].error}")
                continue
            if summary["exit_reason"] == "interrupted":
                return failures, True
            say(f"{label}: {told(summary)}")
    return failures, False


def told(summary: dict[str, Any]) -> str:
    """A finished run in a line."""
    return f"{training_return(summary)}, {summary['env_steps']:,} steps {spent(summary)}"


def _done(plan: Plan, name: str, seed: int) -> bool:
    """Whether a run is there and had its budget; one that failed or was interrupted is run again."""
    return plan.finished(name, seed) and Trained(plan.path(name, seed)).summary["exit_reason"] in FINISHED


def _clear(path: Path) -> None:
    """Remove what an earlier call left unfinished, and nothing that no run would have written."""
    if not path.exists():
        return
    run = RunDirectory(path)
    known = {value for value in vars(run).values() if isinstance(value, Path)}
    strange = [entry for entry in path.iterdir() if entry not in known and not entry.name.startswith(".tmp-")]
    if strange:
        raise ThespisError(f"{path} is no run of a comparison ({strange[0].name} is in it); give another --out")
    shutil.rmtree(path)


@contextmanager
def _claim(out: Path) -> Iterator[None]:
    """Two that run the same comparison at once would take each other's runs for unfinished ones."""
    runs = out / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ThespisError(f"cannot write to {out} ({error.strerror}); give another --out") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ThespisError(f"{out} is in use: another process runs this comparison") from None
        yield
    finally:
        os.close(descriptor)
