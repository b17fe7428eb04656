"""`--env-kwargs.NAME VALUE`: arguments of the environment. They are removed from the flags before parsing."""

from __future__ import annotations

import json
from typing import Any

from thespis.core.errors import ThespisError

_FLAG = "--env-kwargs"
_FORM = "give --env-kwargs.NAME VALUE, e.g. --env-kwargs.map-name 8x8"


def take_env_kwargs(flags: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the other flags, and the arguments of the environment's constructor by name."""
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
    """Parse a value as JSON, else as YAML. JSON comes first because YAML reads 1e-3 as text."""
    import yaml

    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ThespisError(f"{flag} {text} is neither JSON nor YAML; quote it if it is text") from None
