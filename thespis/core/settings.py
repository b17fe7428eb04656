"""The short paths of a config's settings, which flags, YAML files and Python arguments share.

A config is a frozen dataclass that may nest others. A nested config prefixes its settings with its field's name
(`optimizer.learning_rate`). A field made by `inline` adds no prefix: the settings of an algorithm are `discount` and
`n_step`, not `algorithm.discount` and `algorithm.items.n_step`. The class of a nested value determines its
settings; the annotation of its field does not.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_INLINE, _CHOOSE = "inline", "choose"


def inline(factory: Callable[[], Any], choose: Callable[[Any, type[Any]], Any] | None = None) -> Any:
    """Declare a field that holds a nested config and adds no prefix to the paths of its settings.

    `choose(value, config_class)` makes another nested config from the user's value, such as the name of an algorithm.
    The nested config then has a `name`, and the field itself becomes a setting with that name as its value.
    """
    return dataclasses.field(default_factory=factory, metadata={_INLINE: True, _CHOOSE: choose})


def given_fields(cfg: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields that are settings. A field with `init=False` belongs to the class and is no setting."""
    return [part for part in dataclasses.fields(cfg) if part.init]


def is_inline(part: dataclasses.Field[Any]) -> bool:
    """Whether `inline` declared the field."""
    return bool(part.metadata.get(_INLINE))


def chooser(part: dataclasses.Field[Any]) -> Callable[[Any, type[Any]], Any] | None:
    """Return the `choose` function of an inline field; None if users cannot choose its value."""
    found: Callable[[Any, type[Any]], Any] | None = part.metadata.get(_CHOOSE)
    return found


class Setting(NamedTuple):
    """One setting: its short path, the config that owns it, the field's name and type, and the value.

    `chooses`: the value is the name of a nested config, which determines the other settings.
    """

    path: str
    owner: Any
    name: str
    hint: Any
    value: Any
    chooses: bool = False


def walk_settings(cfg: Any, prefix: str = "", without: tuple[type[Any], ...] = ()) -> Iterator[Setting]:
    """Iterate over the settings of a config and its nested configs; skip nested configs of the classes `without`."""
    hints = type_hints(type(cfg))
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if is_inline(part):
            if chooser(part) is not None:
                yield Setting(f"{prefix}{part.name}", cfg, part.name, str, value.name, chooses=True)
            yield from walk_settings(value, prefix, without)
        elif is_config(value):
            if not isinstance(value, without):
                yield from walk_settings(value, f"{prefix}{part.name}.", without)
        else:
            yield Setting(f"{prefix}{part.name}", cfg, part.name, hints[part.name], value)


def names(cfg: Any) -> Iterator[str]:
    """Iterate over the first parts of all paths, which are the keys of a table of settings."""
    for part in given_fields(cfg):
        if not is_inline(part):
            yield part.name
            continue
        if chooser(part) is not None:
            yield part.name
        yield from names(getattr(cfg, part.name))


def is_config(value: Any) -> bool:
    """Whether `value` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


_HINTS: dict[type[Any], dict[str, Any]] = {}
"""Cache of `type_hints`: evaluating the annotations of a class takes milliseconds."""


def type_hints(config: type[Any]) -> dict[str, Any]:
    """Return the types of a config's fields, by name."""
    if config not in _HINTS:
        _HINTS[config] = typing.get_type_hints(config)
    return _HINTS[config]


def flattened(cfg: Any) -> Any:
    """Return the same settings as one dataclass without inline fields, for the flag parser."""
    fields: list[Any] = [
        (name, hint, dataclasses.field(default_factory=functools.partial(_same, value)))
        for name, hint, value in _top_level(cfg)
    ]
    return dataclasses.make_dataclass(type(cfg).__name__, fields, frozen=True)()


def _top_level(cfg: Any) -> Iterator[tuple[str, Any, Any]]:
    """Iterate over name, type and value of each field of `flattened`; the type of a nested config is its class."""
    hints = typing.get_type_hints(type(cfg), include_extras=True)
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if not is_inline(part):
            yield part.name, type(value) if is_config(value) else hints[part.name], value
            continue
        if chooser(part) is not None:
            yield part.name, str, value.name
        yield from _top_level(value)


def _same(value: Any) -> Any:
    return value
