"""Command lines whose mistakes are told like all others: in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn, TypeVar

from thespis.cli.flags import closest
from thespis.core.bounds import Bounds, Number
from thespis.core.errors import ThespisError
from thespis.core.quantity import whole

N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is raised instead of printed below the usage."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: --"):
            flag = message.split()[2].partition("=")[0]
            message = f"there is no flag {closest(flag, self._option_string_actions)}"
        raise ThespisError(f"{message}; see {self.prog} --help")


def add_env_flags(parser: Parser) -> None:
    """Flags for an environment other than the run's own, above all where that cannot be found again."""
    parser.add_argument(
        "--env", help="instead of the run's environment: a Gymnasium id, or file.py::function (default: the run's)"
    )
    parser.add_argument(
        "--wrapper", action="append", metavar="FILE.PY::NAME", help="instead of the run's wrappers; several in order"
    )


def add_policy_flags(parser: Parser) -> None:
    """Flags for which policy of a run plays, and how it draws its actions."""
    parser.add_argument(
        "--checkpoint",
        choices=["newest", "best"],
        default="newest",
        help="where to take the policy from (default: newest)",
    )
    parser.add_argument("--sample", action="store_true", help="draw actions instead of taking the likeliest")
    parser.add_argument("--seed", type=seed, default=0, help="of the environment and of drawn actions (default: 0)")


def add_max_steps(parser: Parser) -> None:
    parser.add_argument(
        "--max-steps",
        type=count,
        metavar="N",
        help="cut episodes after so many steps (default: --eval-max-steps)",
    )


def count(text: str) -> int:
    """A whole number for argparse, as people write it: 1e6, 100k and 5M as well."""
    try:
        number = whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return _checked(number, Number(int, Bounds()))


def seed(text: str) -> int:
    return _checked(count(text), Number(int, Bounds(least=0)))


def finite(text: str) -> float:
    try:
        return _checked(float(text), Number(float, Bounds()))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _checked(value: N, number: Number) -> N:
    wanted = number.refusal(value)
    if wanted is not None:
        raise argparse.ArgumentTypeError(f"{value} will not do; give {wanted}")
    return value
