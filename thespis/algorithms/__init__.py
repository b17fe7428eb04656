"""Algorithms by name, and the choice that an architecture offers. One module each has its settings, without torch.

The package `updates` holds the losses, targets and updates on tensors.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import typing
from collections.abc import Callable, Sequence
from typing import Any

from thespis.algorithms.base import Algorithm
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.core.user_code import resolve

_SHARED = ("base", "updates")
"""Modules of this package that are not algorithms."""


@functools.cache
def algorithms() -> dict[str, Algorithm[Any]]:
    """All algorithms with their default settings, by their `--algorithm` name."""
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


def carried_items(config: type[Any]) -> tuple[str, ...]:
    """The kinds of item that an architecture carries, from its annotation `algorithm: Algorithm[Unrolls | Rounds]`.

    An architecture for a single algorithm may declare that class instead; it carries the items of that class.
    """
    hint = _declared(config)
    items = typing.get_args(hint)[0] if typing.get_origin(hint) is Algorithm else typing.get_type_hints(hint)["items"]
    return tuple(kind.KIND for kind in typing.get_args(items) or (items,))


def fitting_algorithms(config: type[Any]) -> list[str]:
    """Names of the algorithms that an architecture takes; its default comes first."""
    default = config().algorithm.name
    return sorted(
        (name for name, value in algorithms().items() if _fits(config, value)), key=lambda name: (name != default, name)
    )


def chosen(factory: Callable[[], Algorithm[Any]]) -> Any:
    """A config field that holds an algorithm. `factory` builds the default; the user may choose another."""

    def choose(given: Any, config: type[Any]) -> Algorithm[Any]:
        found = algorithm(given, fitting_algorithms(config))
        check_carried(config, found)
        return found

    return inline(factory, choose=choose)


def check_carried(config: type[Any], algorithm: Algorithm[Any]) -> None:
    """Refuse an algorithm if the architecture does not carry its items."""
    if not _fits(config, algorithm):
        raise ThespisError(
            f"--algorithm {algorithm.name} learns from {algorithm.items.KIND}, and this architecture carries "
            f"{' or '.join(carried_items(config))}; choose {', '.join(fitting_algorithms(config))}"
        )


def _fits(config: type[Any], algorithm: Algorithm[Any]) -> bool:
    kind = typing.get_origin(_declared(config)) or _declared(config)
    return isinstance(algorithm, kind) and algorithm.items.KIND in carried_items(config)


_DECLARED: dict[type[Any], Any] = {}
"""Results of `_declared`: to resolve the annotations of a config takes milliseconds."""


def _declared(config: type[Any]) -> Any:
    """The annotated type of the field `algorithm`: `Algorithm[...]` or a subclass."""
    if config not in _DECLARED:
        _DECLARED[config] = typing.get_type_hints(config)["algorithm"]
    return _DECLARED[config]
