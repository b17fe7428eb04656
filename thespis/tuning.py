"""Hyper-parameters by their path in a config: which there are, what values they may take, and how they are set."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from thespis.algorithms.population import Choice, Prior, Range
from thespis.config import Experiment, NetworkConfig
from thespis.errors import ThespisError
from thespis.plain import from_dict

C = TypeVar("C", bound=Experiment)
_KINDS = ("uniform", "log-uniform", "choice")
_FORM = "give PATH uniform LOW HIGH, PATH log-uniform LOW HIGH, or PATH choice A B ..."


def paths(config: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What can differ between members that copy each other: path and type.

    Settings of the run as a whole cannot, and neither can the shape of the network, whose weights are copied.
    """
    shared = {part.name for part in dataclasses.fields(Experiment)}
    for name, hint in typing.get_type_hints(config).items():
        run_wide = name in shared and not prefix
        if run_wide or (isinstance(hint, type) and issubclass(hint, NetworkConfig)):
            continue
        if dataclasses.is_dataclass(hint):
            yield from paths(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif name in {part.name for part in dataclasses.fields(config)}:
            yield f"{prefix}{name}", hint


def assign(cfg: C, values: Mapping[str, Any]) -> C:
    """The config with `values` put in at their paths."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        place = tree
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return from_dict(type(cfg), tree, cfg)


def priors(words: Sequence[str], config: type[Experiment], flag: str) -> dict[str, Prior]:
    """Priors from the words of a command line: one PATH KIND VALUES after another."""
    known = dict(paths(config))
    found: dict[str, Prior] = {}
    for path, kind, values in _entries([part for word in words for part in word.split()], flag):
        if path not in known:
            raise ThespisError(f"{flag}: there is no setting {path!r} to tune; there is {', '.join(known)}")
        if path in found:
            raise ThespisError(f"{flag}: {path} is given twice; give it once")
        found[path] = _prior(f"{flag} {path}", kind, values, known[path])
    if not found:
        raise ThespisError(f"{flag} names nothing; {_FORM}")
    return found


def _entries(words: list[str], flag: str) -> Iterator[tuple[str, str, list[str]]]:
    """(path, kind, values); an entry ends where the word after the next is a kind again."""
    starts = [i for i, (_, after) in enumerate(itertools.pairwise(words)) if after in _KINDS]
    if words and starts[:1] != [0]:
        raise ThespisError(f"{flag} {' '.join(words)}: {_FORM}")
    for start, end in itertools.pairwise([*starts, len(words)]):
        yield words[start], words[start + 1], words[start + 2 : end]


def _prior(where: str, kind: str, values: list[str], hint: Any) -> Prior:
    plain = _plain(hint)
    if kind == "choice":
        if len(values) < 2:
            raise ThespisError(f"{where}: a choice needs at least two values")
        return Choice(tuple(_parse(where, value, plain) for value in values))
    if plain not in (int, float):
        raise ThespisError(f"{where} is not a number; give choice and the values it may take")
    if len(values) != 2:
        raise ThespisError(f"{where}: {kind} needs a lowest and a highest value, not {' '.join(values) or 'nothing'}")
    low, high = (_number(where, value) for value in values)
    if not low < high:
        raise ThespisError(f"{where}: the lowest value {low:g} is not below the highest, {high:g}")
    if kind == "log-uniform" and low <= 0:
        raise ThespisError(f"{where}: log-uniform needs values above 0, and the lowest is {low:g}; use uniform")
    return Range(low, high, log=kind == "log-uniform", whole=plain is int)


def _plain(hint: Any) -> Any:
    """The type of a value, for one that may also be None."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def _number(where: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ThespisError(f"{where}: {value!r} is not a number") from None


def _parse(where: str, value: str, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        if value in typing.get_args(hint):
            return value
        raise ThespisError(f"{where}: {value!r} is not one of {', '.join(map(str, typing.get_args(hint)))}")
    if hint is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ThespisError(f"{where}: {value!r} is not true or false")
    if hint in (int, float):
        number = _number(where, value)
        return round(number) if hint is int else number
    if hint is str:
        return value
    raise ThespisError(f"{where} cannot be tuned: it is not one number or word")


def pairs(words: Sequence[str], flag: str) -> dict[str, Any]:
    """PATH=VALUE words as values by path, read as YAML."""
    import yaml

    found = {}
    for word in words:
        path, equals, value = word.partition("=")
        if not equals or not path:
            raise ThespisError(f"{flag} {word}: give PATH=VALUE, e.g. unroll_length=8")
        found[path] = yaml.safe_load(value)
    return found
