"""`thespis resume RUN`: continues a run from its newest valid checkpoint; flags change its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thespis.cli.train import outcome, parse, take
from thespis.cli.trust_flags import allow
from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment

_USAGE = """usage: thespis resume RUN [--trust] [settings]

Continue a run from its newest valid checkpoint. The settings of thespis train apply,
such as --total-steps (counted from the start of the run), --stop-at-return, --actors,
--on or --learning-rate. Settings that determine the saved state (seed, network, sizes)
cannot change. --trust executes the code that the run names, regardless of its origin.

thespis resume RUN --help lists every setting of the run.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    where, *flags = words
    if where.startswith("-"):
        raise ThespisError("name the run first: thespis resume RUN --total-steps N")
    trust, flags = "--trust" in flags, [flag for flag in flags if flag != "--trust"]
    allow(Path(where), trust)

    from thespis.training.resume import resume_run, with_runtime

    def change(cfg: Experiment) -> Experiment:
        _, on = take(flags, "--on")
        known = on in ("local", "simulation", "ray")
        default = with_runtime(cfg, on) if known else cfg
        return parse(f"thespis resume {where}", default, flags, "[--trust]", "Defaults are the settings of the run.")

    return outcome(lambda: resume_run(Path(where), change))
