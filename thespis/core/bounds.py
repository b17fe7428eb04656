"""The numbers a config may hold: declared in the type of each field, checked for a whole config at once.

A field's type says its range: `discount: Fraction = 0.99`, `hidden: tuple[LayerSize, ...]`, `learners: Count | None`.
A float without a declared range must be finite as a float32, a whole number must fit 64 bits. A class that redeclares
an inherited field to change its default inherits the range, too.
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
from thespis.core.settings import settings

_MOST = 2**63 - 1
_MOST_FLOAT = 3.4e38
"""What float32 holds: settings meet weights and rewards of that type."""


@dataclass(frozen=True)
class Bounds:
    """From `least` (or above `above`) to `most` (or below `below`). `infinite`: inf is a value like any other."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    infinite: bool = False

    def admit(self, value: float) -> bool:
        return (
            (math.isfinite(value) or (self.infinite and not math.isnan(value)))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """What to give, as it stands after the word `give`."""
        words = (("at least", self.least), ("more than", self.above), ("at most", self.most), ("less than", self.below))
        return " and ".join(f"{word} {limit}" for word, limit in words if limit is not None)


Count = Annotated[int, Bounds(least=1)]
"""How many, of which there is at least one."""
CountOrZero = Annotated[int, Bounds(least=0)]
RoleCount = Annotated[int, Bounds(least=1, most=100_000)]
"""How many roles of a kind; a program of more could not even be drawn up."""
ShardCount = Annotated[int, Bounds(least=1, most=1_000)]
"""How many servers share what one would hold; everybody who calls one calls all."""
LayerSize = Annotated[int, Bounds(least=1, most=65_536)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Decay = Annotated[float, Bounds(least=0, below=1)]
"""What a running average keeps of itself at each step; with 1 it would keep all, for ever."""
Threshold = Annotated[float, Bounds(above=0, infinite=True)]
"""A limit that may be infinite, which is none."""


@dataclass(frozen=True)
class Number:
    """A field that holds numbers: `kind` is int or float; None may stand for it if it is `optional`."""

    kind: type[int] | type[float]
    bounds: Bounds
    optional: bool = False

    def refusal(self, value: Any) -> str | None:
        """What to give instead of a value, or None if it will do."""
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


def numbers_of(cfg: Any) -> Iterator[tuple[str, Number]]:
    """Every number of a config and of the configs nested in it, by its path (`optimizer.learning_rate`)."""
    for setting in settings(cfg):
        number = _hints(type(setting.owner)).get(setting.name)
        if number is not None:
            yield setting.path, number


def check_numbers(cfg: Any) -> None:
    """Refuse the first number of a config, or of a config nested in it, that is out of its range."""
    for setting in settings(cfg):
        number, value = _hints(type(setting.owner)).get(setting.name), setting.value
        if number is None or (value is None and number.optional):
            continue
        for each in value if isinstance(value, (tuple, list)) else (value,):
            wanted = number.refusal(each)
            if wanted is not None:
                raise ThespisError(f"--{setting.path.replace('_', '-')} is {_short(each)}; give {wanted}")


_KNOWN: dict[type[Any], dict[str, Number]] = {}
"""The answers of `_hints`, since evaluating the annotations of a class takes milliseconds."""


def _hints(config: type[Any]) -> dict[str, Number]:
    """The fields of a class that hold numbers."""
    if config in _KNOWN:
        return _KNOWN[config]
    own: dict[str, Number] = {}
    for base in reversed(config.__mro__):
        for name, hint in typing.get_type_hints(base, include_extras=True).items() if base is not object else ():
            known, found = own.get(name), _number(hint)
            if found is not None and known is not None and found.bounds == Bounds():
                found = dataclasses.replace(found, bounds=known.bounds)
            if found is not None:
                own[name] = found
    _KNOWN[config] = own
    return own


def _number(hint: Any, bounds: Bounds | None = None, optional: bool = False) -> Number | None:
    if typing.get_origin(hint) is Annotated:
        plain, *extras = typing.get_args(hint)
        return _number(plain, next((extra for extra in extras if isinstance(extra, Bounds)), bounds), optional)
    if hint in (int, float):
        return Number(hint, bounds or Bounds(), optional)
    if typing.get_origin(hint) not in (Union, types.UnionType, tuple, list):
        return None
    options = typing.get_args(hint)
    found = (_number(option, bounds, optional or type(None) in options) for option in options)
    return next((number for number in found if number is not None), None)


def _short(value: Any) -> str:
    """A value as it stands in an error; a number of very many digits is cut."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number beyond {'-' if value < 0 else ''}10^40"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
