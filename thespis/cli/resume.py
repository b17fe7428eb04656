"""`thespis resume RUN`: go on from the newest valid checkpoint, with the settings the run had or others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thespis.cli.train import outcome, parse, take
from thespis.cli.trusting import allow
from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment

_USAGE = """usage: thespis resume RUN [--trust] [settings]

Continue a run from its newest valid checkpoint. Settings are those of thespis train, e.g. --total-steps (counted
from the very start), --stop-at-return, --actors, --on, --optimizer.learning-rate. Those that the saved state depends
on (seed, network, sizes) are refused. --trust runs the code that the run names, whoever made it.

thespis resume RUN --help lists every setting of the run.
"""


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    where, *flags = words
    if where.startswith("-"):
        raise ThespisError("name the run first: thespis resume RUN --total-steps N")
    trust, flags = "--trust" in flags, [flag for flag in flags if flag != "--trust"]
    allow(Path(where), trust)

    from thespis.training.resume import elsewhere, resume

    def change(cfg: Experiment) -> Experiment:
        _, on = take(flags, "--on")
        known = on in ("local", "simulation", "ray")
        default = elsewhere(cfg, on) if known else cfg
        return parse(f"thespis resume {where}", default, flags, "[--trust]", "Defaults are those of the run.")

    return outcome(lambda: resume(Path(where), change))
