"""`thespis compare ARCH ARCH ...`: trains architectures with the same task, network and budget; writes a report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from thespis.cli.output_checks import check_directory
from thespis.cli.parser import Parser, count, finite
from thespis.core.errors import ThespisError

_GIVEN = ("actors", "envs_per_actor", "eval_episodes", "cost_model")
"""Optional settings that apply to every architecture."""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "thespis compare",
        description="Train several architectures on the same task with the same network and budget, one after the "
        "other, and write a report. The same command again continues an interrupted comparison.",
    )
    parser.add_argument(
        "architectures", nargs="+", metavar="ARCH", help="Architecture, or file of a custom architecture."
    )
    parser.add_argument(
        "--env", default="CartPole-v1", metavar="ID", help="Gymnasium id, or file.py::function. (default: CartPole-v1)"
    )
    parser.add_argument("--total-steps", type=count, metavar="N", help="Stop each run after N environment steps.")
    parser.add_argument("--seconds", type=finite, metavar="S", help="Stop each run S seconds after its first step.")
    parser.add_argument(
        "--seeds", type=count, default=3, metavar="K", help="Number of runs per architecture. (default: 3)"
    )
    parser.add_argument(
        "--on", choices=("local", "simulation", "ray"), default="local", help="Runtime. (default: local)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="Output directory. (default: a directory in comparisons/)"
    )
    parser.add_argument(
        "--threshold", type=finite, metavar="X", help="Return that solves the task. (default: from the environment)"
    )
    parser.add_argument(
        "--hidden",
        type=count,
        nargs="+",
        default=[64, 64],
        metavar="N",
        help="Hidden layer sizes of every network. (default: 64 64)",
    )
    parser.add_argument("--actors", type=count, metavar="N", help="Number of actors. (default: from the architecture)")
    parser.add_argument(
        "--envs-per-actor", type=count, metavar="N", help="Environments per actor. (default: from the architecture)"
    )
    parser.add_argument(
        "--eval-episodes", type=count, metavar="N", help="Greedy evaluation episodes at the end of each run."
    )
    parser.add_argument(
        "--cost-model", metavar="FILE", help="In simulation: YAML file with the cost of work and edges."
    )
    return _compare(parser.parse_args(words))


def _compare(args: Any) -> int:
    if args.total_steps is None and args.seconds is None:
        raise ThespisError("the runs need a budget; give --seconds S, --total-steps N, or both")
    if not 1 <= args.seeds <= 10_000:
        raise ThespisError(f"--seeds is {args.seeds}; give at least 1 and at most 10000")
    if min(args.hidden) < 1:
        raise ThespisError(f"--hidden has a layer of size {min(args.hidden)}; give at least 1")
    twice = [name for name in args.architectures if args.architectures.count(name) > 1]
    if twice:
        raise ThespisError(f"{twice[0]} is named twice; name each architecture once")

    from rich.console import Console

    from thespis.report.collect import collect
    from thespis.report.plan import Plan, default_out, threshold_of
    from thespis.report.plots import require_matplotlib
    from thespis.report.run_plan import run_plan
    from thespis.report.text import terminal_table
    from thespis.report.write import write_report

    require_matplotlib()
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
        console.width = 150  # output to a file shows the whole table
    say = partial(console.print, soft_wrap=True, markup=False)
    failures, interrupted = run_plan(plan, say, quiet=not console.is_terminal)  # no progress rows in a file
    comparison = collect(plan, failures)
    write_report(comparison, plan.out)
    console.print()
    console.print(terminal_table(comparison))
    say(f"\nreport: {plan.out / 'report.html'}")
    if interrupted:
        say("interrupted; the same command continues with the missing runs")
        return 130
    return 1 if failures else 0
