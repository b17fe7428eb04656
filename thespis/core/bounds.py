"""Ranges of numeric settings. Each field's type declares its range; `check_numbers` checks a whole config.

Examples: `discount: Fraction = 0.99`, `hidden: tuple[LayerSize, ...]`, `learners: Count | None`. Without a declared
range, a float must be a finite float32 and an integer must fit 64 bits. A subclass that redeclares a field to change
its default inherits the range.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union

from thespis.core.errors import ThespisError
from thespis.core.settings import walk_settings

_MOST = 2**63 - 1
_MOST_FLOAT = 3.4e38
"""About the largest float32: weights and rewards are float32, and settings are combined with them."""


@dataclass(frozen=True)
class Bounds:
    """A range: inclusive limits `least` and `most`, exclusive limits `above` and `below`. `infinite` admits inf."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    infinite: bool = False

    def admit(self, value: float) -> bool:
        """Whether the range contains `value`."""
        return (
            (math.isfinite(value) or (self.infinite and not math.isnan(value)))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """The range as words that follow `give` in an error message."""
        words = (("at least", self.least), ("more than", self.above), ("at most", self.most), ("less than", self.below))
        return " and ".join(f"{word} {limit}" for word, limit in words if limit is not None)


Count = Annotated[int, Bounds(least=1)]
"""A number of things, at least one."""
CountOrZero = Annotated[int, Bounds(least=0)]
RoleCount = Annotated[int, Bounds(least=1, most=100_000)]
"""A number of roles of one kind. The limit keeps the program small enough to build."""
ShardCount = Annotated[int, Bounds(least=1, most=1_000)]
"""A number of shards. The limit is low because every caller calls every shard."""
LayerSize = Annotated[int, Bounds(least=1, most=65_536)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Decay = Annotated[float, Bounds(least=0, below=1)]
"""The decay rate of a running average. It excludes 1, because such an average never changes."""
Threshold = Annotated[float, Bounds(above=0, infinite=True)]
"""A threshold; infinity disables it."""


@dataclass(frozen=True)
class BoundedNumber:
    """The type and range of a numeric field. `kind` is int or float; `optional` admits None."""

    kind: type[int] | type[float]
    bounds: Bounds
    optional: bool = False

    def refusal(self, value: Any) -> str | None:
        """Describe the valid values if `value` is invalid; None if it is valid."""
        wanted = str(self.bounds)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if self.kind is int else numbers.Real):
            return " of ".join(filter(None, ("a whole number" if self.kind is int else "a number", wanted)))
        if isinstance(value, int) and self.kind is int and abs(value) > _MOST:
            return f"{wanted or 'at least 0'} and at most {_MOST}" if self.bounds.most is None else wanted
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and abs(number) > _MOST_FLOAT:
            return f"at least {-_MOST_FLOAT:g} and at most {_MOST_FLOAT:g}"
        if self.bounds.admit(number):
            return None
        countable = math.isfinite(number) or (self.bounds.infinite and not math.isnan(number))
        return wanted if countable else " of ".join(filter(None, ("a finite number", wanted)))


def numbers_of(cfg: Any) -> Iterator[tuple[str, BoundedNumber]]:
    """Yield every numeric field of a config and its nested configs, with its path (`optimizer.learning_rate`)."""
    for setting in walk_settings(cfg):
        number = _hints(type(setting.owner)).get(setting.name)
        if number is not None:
            yield setting.path, number


def check_numbers(cfg: Any) -> None:
    """Refuse a config if a number in it, or in a nested config, is out of range."""
    for setting in walk_settings(cfg):
        number, value = _hints(type(setting.owner)).get(setting.name), setting.value
        if number is None or (value is None and number.optional):
            continue
        for each in value if isinstance(value, (tuple, list)) else (value,):
            wanted = number.refusal(each)
            if wanted is not None:
                raise ThespisError(f"--{setting.path.replace('_', '-')} is {_short(each)}; give {wanted}")


_KNOWN: dict[type[Any], dict[str, BoundedNumber]] = {}
"""Cache of `_hints`: evaluating the annotations of a class takes milliseconds."""


def _hints(config: type[Any]) -> dict[str, BoundedNumber]:
    """The numeric fields of a config class, by name."""
    if config in _KNOWN:
        return _KNOWN[config]
    own: dict[str, BoundedNumber] = {}
    for base in reversed(config.__mro__):
        for name, hint in typing.get_type_hints(base, include_extras=True).items() if base is not object else ():
            known, found = own.get(name), _number(hint)
            if found is not None and known is not None and found.bounds == Bounds():
                found = dataclasses.replace(found, bounds=known.bounds)
            if found is not None:
                own[name] = found
    _KNOWN[config] = own
    return own


def _number(hint: Any, bounds: Bounds | None = None, optional: bool = False) -> BoundedNumber | None:
    if typing.get_origin(hint) is Annotated:
        plain, *extras = typing.get_args(hint)
        return _number(plain, next((extra for extra in extras if isinstance(extra, Bounds)), bounds), optional)
    if hint in (int, float):
        return BoundedNumber(hint, bounds or Bounds(), optional)
    if typing.get_origin(hint) not in (Union, types.UnionType, tuple, list):
        return None
    options = typing.get_args(hint)
    found = (_number(option, bounds, optional or type(None) in options) for option in options)
    return next((number for number in found if number is not None), None)


def _short(value: Any) -> str:
    """A value for an error message, cut if it is long."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number beyond {'-' if value < 0 else ''}10^40"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
