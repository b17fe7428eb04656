"""What is learned and how: one module per algorithm, which holds its settings and loads no torch.

`updates` has the other half: losses, targets and updates, on tensors.
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
"""Modules that are no algorithms."""


@functools.cache
def algorithms() -> dict[str, Algorithm[Any]]:
    """Every algorithm with its own defaults, by the name that `--algorithm` takes."""
    from thespis.algorithms.base import Algorithm

    found: dict[str, Algorithm[Any]] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name not in _SHARED):
        held = vars(importlib.import_module(f"{__name__}.{module}"))
        named = held.get("NAMED", {})
        kinds: list[Any] = [each for each in held.values() if isinstance(each, type) and issubclass(each, Algorithm)]
        made = [kind() for kind in kinds if kind.__module__ == f"{__name__}.{module}"]
        found |= {value.name: value for value in (*made, *named)}
    return found


def algorithm(given: Any, offered: Sequence[str] = ()) -> Algorithm[Any]:
    """An algorithm by its name, as `file.py::Class` of a user's own file, or as it is.

    `offered`: the names to choose from, if not all of them.
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
            f"--algorithm is {given!r}; choose {', '.join(offered or known)}, or give file.py::Class that extends "
            "thespis.Algorithm"
        )
    return found
