"""`thespis plot RUN ...`: the curves of any runs in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thespis.cli.parser import Parser, count
from thespis.cli.writable import check_file
from thespis.core.errors import ThespisError

_ENDINGS = (".png", ".svg", ".pdf")


def run(words: list[str]) -> int:
    parser = Parser(
        "thespis plot",
        description="Draw the curves of runs. Runs that differ only in their seed become one curve with a band.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory; it may still be running")
    parser.add_argument("--x", choices=("steps", "seconds"), default="steps", help="(default: steps)")
    parser.add_argument("--metric", default="rollout/ep_rew_mean", help="what to draw (default: rollout/ep_rew_mean)")
    parser.add_argument("--smooth", type=count, nargs="?", const=10, default=1, metavar="N", help="mean of N rows (10)")
    parser.add_argument("--apart", action="store_true", help="a curve for every run, whatever they have in common")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="a .png, .svg or .pdf (curves.png)")
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
