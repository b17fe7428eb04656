"""`thespis resume RUN`: go on from the newest valid checkpoint, with the settings the run had."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from thespis.cli.parser import Parser
from thespis.cli.train import finish
from thespis.launch import defaults, load_config


def run(words: list[str]) -> int:
    parser = Parser("thespis resume", description="Continue a run from its newest valid checkpoint.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--total-steps", type=int, help="a new limit, counted from the very start")
    parser.add_argument("--stop-at-return", type=float, help="a new return to stop at")
    args = parser.parse_args(words)

    from thespis.runs.directory import RunDirectory

    name, data = load_config(RunDirectory.open(args.run).config)
    new = {key: value for key in ("total_steps", "stop_at_return") if (value := getattr(args, key)) is not None}
    return finish(name, dataclasses.replace(defaults(name, None, data), **new), resume=args.run)
