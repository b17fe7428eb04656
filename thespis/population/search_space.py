"""Hyper-parameters by their path in a config: find them, parse their priors, assign values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from thespis.core.bounds import BoundedNumber, numbers_of
from thespis.core.config import Experiment, NetworkConfig
from thespis.core.config_io import with_settings
from thespis.core.errors import ThespisError
from thespis.core.settings import walk_settings
from thespis.population.exploit import Choice, Prior, Range

_C = TypeVar("_C", bound=Experiment)
_KINDS = ("uniform", "log-uniform", "choice")
_FORM = "give PATH uniform LOW HIGH, PATH log-uniform LOW HIGH, or PATH choice A B ..."


def paths(cfg: Experiment) -> Iterator[tuple[str, Any]]:
    """The settings that may differ between members: path and type.

    Excluded are settings of the whole run, and the shape of the network, because members copy weights.
    """
    shared = {part.name for part in dataclasses.fields(Experiment)}
    for setting in walk_settings(cfg, without=(NetworkConfig,)):
        if setting.path not in shared and not setting.chooses:
            yield setting.path, setting.hint


def assign(cfg: _C, values: Mapping[str, Any]) -> _C:
    """A copy of the config with `values` set at their paths."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        branch = tree
        for name in outer:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return with_settings(cfg, tree)


def priors(words: Sequence[str], cfg: Experiment, flag: str) -> dict[str, Prior]:
    """Parse priors from command-line words: one PATH KIND VALUES after another."""
    known, numbers = dict(paths(cfg)), dict(numbers_of(cfg))
    found: dict[str, Prior] = {}
    for path, kind, values in _entries([part for word in words for part in word.split()], flag):
        if path not in known:
            raise ThespisError(f"{flag}: there is no setting {path!r} to tune; choose {', '.join(known)}")
        if path in found:
            raise ThespisError(f"{flag}: {path} is given twice; remove one")
        found[path] = _prior(f"{flag} {path}", kind, values, known[path])
        _check_range(f"{flag} {path}", found[path], numbers.get(path))
    if not found:
        raise ThespisError(f"{flag} is empty; {_FORM}")
    return found


def _entries(words: list[str], flag: str) -> Iterator[tuple[str, str, list[str]]]:
    """Split words into (path, kind, values). A new entry starts one word before each kind."""
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
        raise ThespisError(f"{where} is not a number; use choice and list its values")
    if len(values) != 2:
        raise ThespisError(f"{where}: {kind} needs a lowest and a highest value, not {' '.join(values) or 'nothing'}")
    low, high = (_number(where, value) for value in values)
    if not low < high:
        raise ThespisError(f"{where}: the lowest value {low:g} is not below the highest, {high:g}")
    if kind == "log-uniform" and low <= 0:
        raise ThespisError(f"{where}: log-uniform needs values above 0, but the lowest is {low:g}; use uniform")
    return Range(low, high, log=kind == "log-uniform", whole=plain is int)


def _check_range(where: str, prior: Prior, number: BoundedNumber | None) -> None:
    """Refuse a prior if it contains values out of the setting's range."""
    for value in (prior.low, prior.high) if isinstance(prior, Range) else getattr(prior, "options", ()):
        wanted = None if number is None else number.refusal(round(value) if number.kind is int else value)
        if wanted is not None:
            raise ThespisError(f"{where}: {value:g} is out of range; give {wanted}")


def _plain(hint: Any) -> Any:
    """The type of a setting without None."""
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
    raise ThespisError(f"{where} cannot be tuned: it is not a single number or word")


def pairs(words: Sequence[str], flag: str) -> dict[str, Any]:
    """Parse PATH=VALUE words; values are YAML."""
    import yaml

    found = {}
    for word in words:
        path, equals, value = word.partition("=")
        if not equals or not path:
            raise ThespisError(f"{flag} {word}: give PATH=VALUE, e.g. unroll_length=8")
        try:
            found[path] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError) as error:
            raise ThespisError(f"{flag} {word}: {value!r} is not valid YAML ({error})") from error
    return found
