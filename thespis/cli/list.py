"""`thespis list`: lists the architectures, each with its algorithms."""

from __future__ import annotations

import sys
from types import ModuleType

from thespis.algorithms import algorithms, fitting_algorithms
from thespis.core.errors import ThespisError
from thespis.training.registry import PAIRS, architecture, architectures

_HELP = """usage: thespis list

List the architectures, each with a one-line description and its algorithms, the
default algorithm first. The short names below the architectures stand for an algorithm
in its usual architecture.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    if words and words[0] not in ("-h", "--help"):
        raise ThespisError(
            f"thespis list takes no arguments ({words[0]!r} was given); thespis show ARCH shows one architecture"
        )
    if words:
        print(_HELP, end="")
        return 0
    for name in architectures():
        module = architecture(name)
        print(f"{name:18} {_first_line(module)}")
        if hasattr(module.Config(), "algorithm"):
            print(f"{'':18} --algorithm {', '.join(fitting_algorithms(module.Config))}")
    known = algorithms()
    print("\nshort names of algorithms in their usual architecture:")
    for name, (where, learned) in PAIRS.items():
        print(f"{name:18} {_first_line(sys.modules[type(known[learned]).__module__])}")
        print(f"{'':18} means {where} --algorithm {learned}")
    return 0


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]
