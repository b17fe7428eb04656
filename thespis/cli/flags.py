"""Preparation of a command line before parsing: short flag names, numbers with units, and errors for unknown flags."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from thespis.core.bounds import BoundedNumber, numbers_of
from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int
from thespis.core.settings import walk_settings


def expand(words: list[str], cfg: Any) -> list[str]:
    """Replace short flag names by full names, and whole numbers with units by digits.

    `--learning-rate` means `--optimizer.learning-rate` if no other flag ends in that name. Unknown flags, missing and
    extra values, unknown choices and invalid numbers raise `ThespisError`.
    """
    hints = {each.path: each.hint for each in walk_settings(cfg)}
    known = {flag: path for path, hint in hints.items() for flag in _names(path, hint)}
    numbers = dict(numbers_of(cfg))
    _refuse_unknown(words, known)
    flag, path, values, expanded = "", "", 0, list[str]()
    for word in words:
        if word.startswith("--") and len(word) > 2:
            _refuse_missing(flag, values, hints.get(path))
            name, equals, value = word.partition("=")
            flag = _full(name, known)[0]
            path, values = known[flag], int(bool(equals))
            expanded.append(f"{flag}={_value(flag, value, hints[path], numbers.get(path))}" if equals else flag)
            continue
        values += 1
        if not flag or values > _most_values(hints[path]):
            where = f" after {flag}" if flag else ""
            raise ThespisError(f"{word[:40]!r}{where} belongs to no flag; give settings as --NAME VALUE")
        expanded.append(_value(flag, word, hints[path], numbers.get(path)))
    _refuse_missing(flag, values, hints.get(path))
    return expanded


def closest(name: str, known: Iterable[str]) -> str:
    """Return an unknown flag with the most similar known flag."""
    candidates = {flag.lstrip("-"): flag for flag in known}
    # Compare the last part of the name too: users may not know that the learning rate belongs to the optimizer.
    candidates = {flag.rpartition(".")[2]: full for flag, full in candidates.items()} | candidates
    near = difflib.get_close_matches(name.lstrip("-").replace("_", "-"), candidates, n=1, cutoff=0.7)
    return f"{name} (did you mean {candidates[near[0]]}?)" if near else name


def _names(path: str, hint: Any) -> list[str]:
    outer, dot, leaf = path.replace("_", "-").rpartition(".")
    return [f"--{outer}{dot}{leaf}"] + ([f"--{outer}{dot}no-{leaf}"] if hint is bool else [])


def _refuse_unknown(words: list[str], known: dict[str, str]) -> None:
    given = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
    for flag in given:
        if len(found := _full(flag, known)) > 1:
            raise ThespisError(f"{flag} could be {' or '.join(found)}; give one of them")
    unknown = [closest(flag, known) for flag in given if not _full(flag, known)]
    if unknown:
        raise ThespisError(f"there is no flag {', '.join(unknown)}")


def _full(flag: str, known: dict[str, str]) -> list[str]:
    """The known flags that a name can mean: the flag itself, or every flag that ends in it."""
    flag = flag.replace("_", "-")
    return [flag] if flag in known else [full for full in known if full.endswith(f".{flag.removeprefix('--')}")]


def _refuse_missing(flag: str, values: int, hint: Any) -> None:
    if flag and not values and _most_values(hint) == 1:
        raise ThespisError(f"{flag} has no value; give {flag} VALUE")


def _most_values(hint: Any) -> float:
    """How many words a flag takes: none for a switch, any number for a sequence or a table, otherwise one."""
    if hint is bool:
        return 0
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    several = any(typing.get_origin(each) in (tuple, list, dict, Mapping) for each in options)
    return math.inf if several else 1


def _value(flag: str, word: str, hint: Any, number: BoundedNumber | None) -> str:
    """Return the value of a flag, in digits if the flag takes a whole number."""
    if typing.get_origin(hint) is typing.Literal:
        choices = [str(choice) for choice in typing.get_args(hint)]
        if word not in choices:
            raise ThespisError(f"{flag} takes {', '.join(choices[:-1])} or {choices[-1]}, not {word[:40]!r}")
    if number is None or (number.optional and word == "None"):
        return word
    try:
        if number.kind is int:
            return str(parse_int(word))
        float(word)
    except ValueError:
        example = "a whole number, such as 1000000, 1e6, 100k or 5M" if number.kind is int else "a number"
        raise ThespisError(f"{flag} takes {example}, not {word[:40]!r}") from None
    return word
