"""The argument parser of the commands: it reports errors in one line, like all other user errors."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn, TypeVar

from thespis.cli.flags import closest
from thespis.core.bounds import BoundedNumber, Bounds
from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int

N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises errors instead of printing them with the usage."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, add_help=False, **options)
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def error(self, message: str) -> NoReturn:
        """Raise a `ThespisError`; an unknown flag comes with a suggestion."""
        if message.startswith("unrecognized arguments: --"):
            flag = message.split()[2].partition("=")[0]
            message = f"there is no flag {closest(flag, self._option_string_actions)}"
        raise ThespisError(f"{message}; see {self.prog} --help")


def add_env_flags(parser: Parser) -> None:
    """Add flags that replace the run's environment, e.g. because its code is missing."""
    parser.add_argument(
        "--env", metavar="ID", help="Gymnasium id or file.py::function. (default: the environment of the run)"
    )
    parser.add_argument(
        "--wrapper",
        action="append",
        metavar="FILE.PY::NAME",
        help="Replace the run's wrappers; repeat for several, the innermost first.",
    )


def add_policy_flags(parser: Parser) -> None:
    """Add flags that select the checkpoint of the policy, and how it samples actions."""
    parser.add_argument(
        "--checkpoint",
        choices=["newest", "best"],
        default="newest",
        help="Checkpoint to load the policy from. (default: newest)",
    )
    parser.add_argument("--sample", action="store_true", help="Sample actions instead of taking the most likely one.")
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="Seed of the environment and of sampled actions. (default: 0)"
    )


def add_max_steps(parser: Parser) -> None:
    """Add the flag that limits the length of episodes."""
    parser.add_argument(
        "--max-steps",
        type=positive,
        metavar="N",
        help="Truncate episodes after N steps. (default: --eval-max-steps of the run)",
    )


def count(text: str) -> int:
    """Parse a whole number for argparse; 1e6, 100k and 5M are valid."""
    try:
        number = parse_int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return _checked(number, BoundedNumber(int, Bounds()))


def positive(text: str) -> int:
    """Parse a whole number of at least 1 for argparse."""
    return _checked(count(text), BoundedNumber(int, Bounds(least=1)))


def seed(text: str) -> int:
    """Parse a random seed for argparse: a whole number of at least 0."""
    return _checked(count(text), BoundedNumber(int, Bounds(least=0)))


def finite(text: str) -> float:
    """Parse a finite number for argparse."""
    try:
        return _checked(float(text), BoundedNumber(float, Bounds()))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _checked(value: N, number: BoundedNumber) -> N:
    wanted = number.refusal(value)
    if wanted is not None:
        raise argparse.ArgumentTypeError(f"{value} is invalid; give {wanted}")
    return value
