"""`thespis plot RUN ...`: plots the learning curves of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thespis.cli.output_checks import check_file
from thespis.cli.parser import Parser, count
from thespis.core.errors import ThespisError

_ENDINGS = (".png", ".svg", ".pdf")


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "thespis plot",
        description="Plot the learning curves of runs. Runs with the same settings and different seeds become one "
        "curve with a confidence band.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="Run directory of a finished or active run.")
    parser.add_argument("--x", choices=("steps", "seconds"), default="steps", help="X axis. (default: steps)")
    parser.add_argument(
        "--metric", metavar="NAME", default="rollout/ep_rew_mean", help="Metric to plot. (default: rollout/ep_rew_mean)"
    )
    parser.add_argument(
        "--smooth",
        type=count,
        nargs="?",
        const=10,
        default=1,
        metavar="N",
        help="Average over N rows (10 if N is omitted).",
    )
    parser.add_argument("--apart", action="store_true", help="Plot one curve per run.")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("curves.png"),
        metavar="FILE",
        help="Output file: .png, .svg or .pdf. (default: curves.png)",
    )
    args = parser.parse_args(words)
    if args.out.suffix not in _ENDINGS:
        raise ThespisError(f"--out is {args.out}; give a name that ends in {', '.join(_ENDINGS)}")
    if args.smooth < 1:
        raise ThespisError(f"--smooth is {args.smooth}; give at least 1")
    return _plot(args)


def _plot(args: Any) -> int:
    from thespis.report.curves import draw_curves, grouped

    check_file(args.out, "--out")
    groups = grouped(args.runs, args.apart)
    data = draw_curves(groups, args.x, args.metric, args.smooth, args.out.suffix[1:])
    try:
        args.out.write_bytes(data)
    except OSError as error:
        raise ThespisError(f"{args.out} cannot be written ({error.strerror}); give another --out") from None
    print(f"{args.out}: {', '.join(f'{name} ({len(runs)})' for name, runs in groups.items())}")
    return 0
