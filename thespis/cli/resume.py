"""`thespis resume RUN`: go on from the newest valid checkpoint, with the settings the run had."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from thespis.cli.parser import Parser
from thespis.cli.train import finish
from thespis.launch import defaults, load_config

_CHANGEABLE = ("total_steps", "total_seconds", "stop_at_return", "on", "actors", "ray_address")


def run(words: list[str]) -> int:
    parser = Parser("thespis resume", description="Continue a run from its newest valid checkpoint.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--total-steps", type=int, help="a new limit, counted from the very start")
    parser.add_argument("--total-seconds", type=float, help="a new limit of time, counted from the very first step")
    parser.add_argument("--stop-at-return", type=float, help="a new return to stop at")
    parser.add_argument("--on", choices=("local", "simulation", "ray"), help="another runtime than the run had")
    parser.add_argument("--actors", type=int, help="another number of actors than the run had")
    parser.add_argument("--ray-address", help="ray: the cluster to join")
    args = parser.parse_args(words)

    from thespis.runs.directory import RunDirectory

    name, data = load_config(RunDirectory.open(args.run).config)
    new = {key: value for key in _CHANGEABLE if (value := getattr(args, key)) is not None}
    if new.get("on", "ray") != "ray":  # the run had a place in a cluster, which means nothing elsewhere
        new |= {"ray_address": None, "actors_per_node": None}
    return finish(name, dataclasses.replace(defaults(name, None, data), **new), resume=args.run)
