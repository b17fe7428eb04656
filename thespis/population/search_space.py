"""Hyper-parameters by their path in a config: which there are, what values they may take, and how they are set."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from thespis.core.bounds import Number, numbers_of
from thespis.core.config import Experiment, NetworkConfig
from thespis.core.config_io import updated
from thespis.core.errors import ThespisError
from thespis.core.settings import settings
from thespis.population.exploit import Choice, Prior, Range

C = TypeVar("C", bound=Experiment)
_KINDS = ("uniform", "log-uniform", "choice")
_FORM = "give PATH uniform LOW HIGH, PATH log-uniform LOW HIGH, or PATH choice A B ..."


def paths(cfg: Experiment) -> Iterator[tuple[str, Any]]:
    """What can differ between members that copy each other: path and type.

    Settings of the run as a whole cannot, and neither can the shape of the network, whose weights are copied.
    """
    shared = {part.name for part in dataclasses.fields(Experiment)}
    for setting in settings(cfg, without=(NetworkConfig,)):
        if setting.path not in shared and not setting.chooses:
            yield setting.path, setting.hint


def assign(cfg: C, values: Mapping[str, Any]) -> C:
    """The config with `values` put in at their paths."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        place = tree
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return updated(cfg, tree)


def priors(words: Sequence[str], cfg: Experiment, flag: str) -> dict[str, Prior]:
    """Priors from the words of a command line: one PATH KIND VALUES after another."""
    known, numbers = dict(paths(cfg)), dict(numbers_of(cfg))
    found: dict[str, Prior] = {}
    for path, kind, values in _entries([part for word in words for part in word.split()], flag):
        if path not in known:
            raise ThespisError(f"{flag}: there is no setting {path!r} to tune; there is {', '.join(known)}")
        if path in found:
            raise ThespisError(f"{flag}: {path} is given twice; give it once")
        found[path] = _prior(f"{flag} {path}", kind, values, known[path])
        _check_range(f"{flag} {path}", found[path], numbers.get(path))
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


def _check_range(where: str, prior: Prior, number: Number | None) -> None:
    """Refuse a prior that could draw what the setting refuses."""
    for value in (prior.low, prior.high) if isinstance(prior, Range) else getattr(prior, "options", ()):
        wanted = None if number is None else number.refusal(round(value) if number.kind is int else value)
        if wanted is not None:
            raise ThespisError(f"{where}: {value:g} will not do; give {wanted}")


def _plain(hint: Any) -> Any:
    """The type of a value, for one that may also be None."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def _number(where: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ThespisError(f"{where}: {value!r} is not a number") from None
    if not math.isfinite(number):
        raise ThespisError(f"{where}: {value!r} is not a finite number")
    return number


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
        try:
            found[path] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError) as error:
            raise ThespisError(f"{flag} {word}: {value!r} is not a value in YAML ({error})") from error
    return found
