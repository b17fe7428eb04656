"""`--env-kwargs.NAME VALUE`: flags with names that only the environment knows, taken before the others are parsed."""

from __future__ import annotations

import json
from typing import Any

from thespis.core.errors import ThespisError

_FLAG = "--env-kwargs"
_FORM = "give --env-kwargs.NAME VALUE, e.g. --env-kwargs.map-name 8x8"


def take_env_kwargs(flags: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The other flags, and the arguments for the environment's constructor by name."""
    rest: list[str] = []
    found: dict[str, Any] = {}
    words = iter(flags)
    for word in words:
        flag, joined, value = word.partition("=")
        head, dot, name = flag.partition(".")
        if head.replace("_", "-") != _FLAG:
            rest.append(word)
            continue
        name = name.replace("-", "_")
        if not dot or not name.isidentifier():
            raise ThespisError(f"{word} names no argument of the environment; {_FORM}")
        if not joined:
            value = next(words, "--")
            if value.startswith("--"):
                raise ThespisError(f"{flag} has no value; {_FORM}")
        found[name] = _read(flag, value)
    return rest, found


def _read(flag: str, text: str) -> Any:
    """A value as JSON, else as YAML, to which 1e-3 is a word."""
    import yaml

    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ThespisError(f"{flag} {text}: neither JSON nor YAML; put it into quotes if it is text") from None
