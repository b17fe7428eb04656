"""`thespis list`: the architectures there are, with the algorithms that each takes."""

from __future__ import annotations

import sys
from types import ModuleType

from thespis.algorithms import algorithms
from thespis.algorithms.base import fitting
from thespis.core.errors import ThespisError
from thespis.training.registry import PAIRS, architecture, architectures

_HELP = """usage: thespis list

The architectures there are, with the first line of each and the algorithms that it takes, the default first. Below
them names of algorithms that stand for one of these architectures with that algorithm.
"""


def run(words: list[str]) -> int:
    if words and words[0] not in ("-h", "--help"):
        raise ThespisError(
            f"thespis list takes no arguments, such as {words[0]!r}; thespis show ARCH shows one of them"
        )
    if words:
        print(_HELP, end="")
        return 0
    for name in architectures():
        module = architecture(name)
        print(f"{name:18} {_first_line(module)}")
        if hasattr(module.Config(), "algorithm"):
            print(f"{'':18} --algorithm {', '.join(fitting(module.Config))}")
    known = algorithms()
    print("\nalgorithms in the architecture they are usually trained with:")
    for name, (where, learned) in PAIRS.items():
        print(f"{name:18} {_first_line(sys.modules[type(known[learned]).__module__])}")
        print(f"{'':18} stands for {where} --algorithm {learned}")
    return 0


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]
