"""The words of a command line, before they are parsed: short names, numbers with units, and names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from thespis.core.bounds import Number, numbers_of
from thespis.core.errors import ThespisError
from thespis.core.quantity import whole
from thespis.core.settings import settings


def expand(words: list[str], cfg: Any) -> list[str]:
    """The words with every flag by its full name and every whole number in digits.

    Unknown flags are refused, and words that are no numbers where a flag takes a number.

    `--learning-rate` stands for `--optimizer.learning-rate` if no other flag ends in that name.
    """
    known = {flag: each.path for each in settings(cfg) for flag in _names(each.path, each.hint)}
    numbers = dict(numbers_of(cfg))
    _refuse_unknown(words, known)
    flag, path, expanded = "", "", []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            flag = _full(name, known)[0]
            path = known[flag]
            expanded.append(f"{flag}={_digits(flag, value, numbers.get(path))}" if equals else flag)
        else:
            expanded.append(_digits(flag, word, numbers.get(path)))
    return expanded


def closest(name: str, known: Iterable[str]) -> str:
    """A flag that does not exist, with the one most like it."""
    candidates = {flag.lstrip("-"): flag for flag in known}
    # Also by the last part of the name: few know that a learning rate is one of the optimizer's settings.
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
    """The flags that a name may stand for: itself, or all that end in it."""
    flag = flag.replace("_", "-")
    return [flag] if flag in known else [full for full in known if full.endswith(f".{flag.removeprefix('--')}")]


def _digits(flag: str, word: str, number: Number | None) -> str:
    """A word given to a flag, in digits if the flag takes a whole number."""
    if number is None or (number.optional and word == "None"):
        return word
    try:
        if number.kind is int:
            return str(whole(word))
        float(word)
    except ValueError:
        example = "a whole number, such as 1000000, 1e6, 100k or 5M" if number.kind is int else "a number"
        raise ThespisError(f"{flag} takes {example}, not {word[:40]!r}") from None
    return word
