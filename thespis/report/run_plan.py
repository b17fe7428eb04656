"""Runs a plan, one run after the other. Finished runs stay on disk even if a later run fails."""

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
from thespis.runs.terminal.summary_text import spent, training_return
from thespis.training.launch import launch
from thespis.training.trained_run import RunFailed, TrainedRun


@dataclass(frozen=True)
class Failure:
    """A failed run and its error."""

    architecture: str
    seed: int
    error: str


def run_plan(plan: Plan, say: Callable[[str], None], quiet: bool = False) -> tuple[list[Failure], bool]:
    """Run the missing runs. Return the failures, and whether the user interrupted the comparison."""
    failures: list[Failure] = []
    runs = plan.runs()
    with _claim(plan.out):
        for number, (name, seed) in enumerate(runs, 1):
            label = f"[{number}/{len(runs)}] {name}, seed {seed}"
            if _done(plan, name, seed):
                say(f"{label}: already finished, {summary_line(TrainedRun(plan.path(name, seed)).summary)}")
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
            say(f"{label}: {summary_line(summary)}")
    return failures, False


def summary_line(summary: dict[str, Any]) -> str:
    """Describe a finished run in one line."""
    return f"{training_return(summary)}, {summary['env_steps']:,} steps {spent(summary)}"


def _done(plan: Plan, name: str, seed: int) -> bool:
    """Whether a run is finished. Failed and interrupted runs run again."""
    return plan.finished(name, seed) and TrainedRun(plan.path(name, seed)).summary["exit_reason"] in FINISHED


def _clear(path: Path) -> None:
    """Remove an unfinished run. A directory with other files is an error."""
    if not path.exists():
        return
    run = RunDirectory(path)
    known = {value for value in vars(run).values() if isinstance(value, Path)}
    unknown = [entry for entry in path.iterdir() if entry not in known and not entry.name.startswith(".tmp-")]
    if unknown:
        raise ThespisError(f"{path} is not a run of a comparison: it holds {unknown[0].name}; give another --out")
    shutil.rmtree(path)


@contextmanager
def _claim(out: Path) -> Iterator[None]:
    """Lock the output directory: a second process would remove the active run as unfinished."""
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
