"""`--trust`: whether the code that a run names may be executed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thespis.training.run import Trained


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", action="store_true", help="run the code that the run names, whoever made it")


def open_run(path: Path, trust: bool) -> Trained:
    """The run, once it is known that its code may be executed."""
    from thespis.training.run import Trained

    allow(path, trust)
    return Trained(path, trust=True)


def allow(path: Path, trust: bool) -> None:
    """Return if the code that a run names may be executed. Somebody at a terminal is asked."""
    from thespis.runs.directory import RunDirectory
    from thespis.runs.trust import Untrusted, check, code_of
    from thespis.training.registry import load_config

    code = code_of(*load_config(RunDirectory.open(path).config))
    try:
        if not trust:
            check(path, code, "give --trust if you trust whoever made it")
    except Untrusted as refusal:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        print(f"{refusal.what}. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise
    if code:
        sys.path.insert(0, "")  # modules of one's own are found where one stands, as they were for `thespis train`
