"""`thespis compare ARCH ARCH ...`: the same task, network and budget for several architectures, and a report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from thespis.cli.parser import Parser, count, finite
from thespis.cli.writable import check_directory
from thespis.core.errors import ThespisError

_GIVEN = ("actors", "envs_per_actor", "eval_episodes", "cost_model")
"""Settings that are given to every architecture alike, if at all."""


def run(words: list[str]) -> int:
    parser = Parser(
        "thespis compare",
        description="Train several architectures on the same task with the same network and budget, one after the "
        "other, and write a report. Called again it goes on where it was stopped.",
    )
    parser.add_argument("architectures", nargs="+", metavar="ARCH", help="an architecture, or the file of one")
    parser.add_argument("--env", default="CartPole-v1", help="Gymnasium id, verbatim, or file.py::function")
    parser.add_argument("--total-steps", type=count, metavar="N", help="environment steps of each run")
    parser.add_argument("--seconds", type=finite, metavar="S", help="seconds of each run from its first step on")
    parser.add_argument("--seeds", type=count, default=3, metavar="K", help="runs of each architecture (default: 3)")
    parser.add_argument("--on", choices=("local", "simulation", "ray"), default="local", help="(default: local)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; by default below comparisons/")
    parser.add_argument("--threshold", type=finite, help="return that counts as solved (default: what the task says)")
    parser.add_argument(
        "--hidden", type=count, nargs="+", default=[64, 64], help="hidden layers of every network (default: 64 64)"
    )
    parser.add_argument("--actors", type=count, help="actors of every architecture (default: its own)")
    parser.add_argument("--envs-per-actor", type=count, help="environments of each actor (default: its own)")
    parser.add_argument("--eval-episodes", type=count, help="greedy episodes at the end of each run")
    parser.add_argument("--cost-model", help="simulation: YAML file with the cost of work and edges")
    return _compare(parser.parse_args(words))


def _compare(args: Any) -> int:
    if args.total_steps is None and args.seconds is None:
        raise ThespisError("say how long each run may take: --seconds S, --total-steps N, or both")
    if not 1 <= args.seeds <= 10_000:
        raise ThespisError(f"--seeds is {args.seeds}; give at least 1 and at most 10000")
    if min(args.hidden) < 1:
        raise ThespisError(f"--hidden has a layer of {min(args.hidden)}; give at least 1")
    twice = [name for name in args.architectures if args.architectures.count(name) > 1]
    if twice:
        raise ThespisError(f"{twice[0]} is named twice; name each architecture once")

    from rich.console import Console

    from thespis.report.collect import collect
    from thespis.report.perform import perform
    from thespis.report.plan import Plan, default_out, threshold_of
    from thespis.report.plots import require
    from thespis.report.text import terminal
    from thespis.report.write import write

    require()
    plan = Plan(
        architectures=tuple(args.architectures),
        env=args.env,
        seeds=args.seeds,
        total_steps=args.total_steps,
        total_seconds=args.seconds,
        hidden=tuple(args.hidden),
        on=args.on,
        out=args.out or default_out(args.env, args.total_steps, args.seconds, args.on),
        threshold=args.threshold if args.threshold is not None else threshold_of(args.env),
        settings={name: value for name in _GIVEN if (value := getattr(args, name)) is not None},
    )
    check_directory(plan.out, "--out")
    plan.check()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150  # a file has room for the whole table
    say = partial(console.print, soft_wrap=True, markup=False)
    failures, interrupted = perform(plan, say, quiet=not console.is_terminal)  # a file needs no line per row
    comparison = collect(plan, failures)
    write(comparison, plan.out)
    console.print()
    console.print(terminal(comparison))
    say(f"\nreport: {plan.out / 'report.html'}")
    if interrupted:
        say("interrupted; the same command goes on with what is missing")
        return 130
    return 1 if failures else 0
