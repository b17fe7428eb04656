"""Algorithms: one module each, with its settings. These modules do not import torch.

The package `updates` holds the losses, targets and updates on tensors.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thespis.core.errors import ThespisError
from thespis.core.user_code import resolve

if TYPE_CHECKING:
    from thespis.algorithms.base import Algorithm

_SHARED = ("base", "updates")
"""Modules of this package that are not algorithms."""


@functools.cache
def algorithms() -> dict[str, Algorithm[Any]]:
    """All algorithms with their default settings, by their `--algorithm` name."""
    from thespis.algorithms.base import Algorithm

    found: dict[str, Algorithm[Any]] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name not in _SHARED):
        members = vars(importlib.import_module(f"{__name__}.{module}"))
        variants = members.get("VARIANTS", ())
        kinds: list[Any] = [each for each in members.values() if isinstance(each, type) and issubclass(each, Algorithm)]
        defaults = [kind() for kind in kinds if kind.__module__ == f"{__name__}.{module}"]
        found |= {value.name: value for value in (*defaults, *variants)}
    return found


def algorithm(given: Any, offered: Sequence[str] = ()) -> Algorithm[Any]:
    """Resolve a name, a `file.py::Class`, an Algorithm class or an instance to an algorithm.

    `offered`: the names that an error message lists; all by default.
    """
    from thespis.algorithms.base import Algorithm

    known = algorithms()
    if isinstance(given, str) and given in known:
        return known[given]
    found: Any = resolve(given) if isinstance(given, str) and "::" in given else given
    if isinstance(found, type) and Algorithm in found.__mro__:
        found = found()
    if not isinstance(found, Algorithm):
        raise ThespisError(
            f"--algorithm is {given!r}; choose {', '.join(offered or known)}, or give a file.py::Class that extends "
            "thespis.Algorithm"
        )
    return found
