"""`--trust`: permission to execute the code that a run names."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thespis.training.trained_run import TrainedRun


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flag --trust."""
    parser.add_argument(
        "--trust", action="store_true", help="Execute the code that the run names, regardless of its origin."
    )


def open_run(path: Path, trust: bool) -> TrainedRun:
    """Open a run after checking that its code may be executed."""
    from thespis.training.trained_run import TrainedRun

    allow(path, trust)
    return TrainedRun(path, trust=True)


def allow(path: Path, trust: bool) -> None:
    """Raise `Untrusted` unless the code that a run names may be executed. On a terminal, ask the user."""
    from thespis.runs.directory import RunDirectory
    from thespis.runs.trust import Untrusted, check_trusted, code_of
    from thespis.training.registry import load_config

    code = code_of(*load_config(RunDirectory.open(path).config))
    try:
        if not trust:
            check_trusted(path, code, "give --trust if you trust its origin")
    except Untrusted as refusal:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        print(f"{refusal.what}. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise
    if code:
        sys.path.insert(0, "")  # as in `thespis train`, import modules from the working directory
