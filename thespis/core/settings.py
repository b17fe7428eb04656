"""The settings of a config by their short paths: the names that flags, YAML files and Python arguments share.

A config is a frozen dataclass that may nest others. A nested config adds its field's name to the paths of its settings
(`optimizer.learning_rate`), unless the field is made by `inline`: the settings of an algorithm are `discount` and
`n_step`, not `algorithm.discount` and `algorithm.items.n_step`. The class of a nested value decides which settings
there are, not the annotation of its field.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_INLINE, _CHOOSE = "inline", "choose"


def inline(factory: Callable[[], Any], choose: Callable[[Any, type[Any]], Any] | None = None) -> Any:
    """A field that holds a nested config without adding to the paths of its settings.

    `choose`: makes another value for the field from what a user gives for it, such as the name of an algorithm, and
    from the class of the config. The value then has a `name`, and the field's own name is a setting that holds it.
    """
    return dataclasses.field(default_factory=factory, metadata={_INLINE: True, _CHOOSE: choose})


def given_fields(cfg: Any) -> list[dataclasses.Field[Any]]:
    """The fields that a config can be given. One with `init=False` is part of what its class is, and no setting."""
    return [part for part in dataclasses.fields(cfg) if part.init]


def is_inline(part: dataclasses.Field[Any]) -> bool:
    return bool(part.metadata.get(_INLINE))


def chooser(part: dataclasses.Field[Any]) -> Callable[[Any, type[Any]], Any] | None:
    """What makes another value for an inline field from what a user gives for it; None if it cannot be chosen."""
    found: Callable[[Any, type[Any]], Any] | None = part.metadata.get(_CHOOSE)
    return found


class Setting(NamedTuple):
    """One setting: its short path, the config that holds it, its field there, the field's type, and its value.

    `chooses`: the value is the name of a nested config, which decides what other settings there are.
    """

    path: str
    owner: Any
    name: str
    hint: Any
    value: Any
    chooses: bool = False


def settings(cfg: Any, prefix: str = "", without: tuple[type[Any], ...] = ()) -> Iterator[Setting]:
    """Every setting of a config and of the configs nested in it, but for nested ones of the classes `without`."""
    hints = type_hints(type(cfg))
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if is_inline(part):
            if chooser(part) is not None:
                yield Setting(f"{prefix}{part.name}", cfg, part.name, str, value.name, chooses=True)
            yield from settings(value, prefix, without)
        elif is_config(value):
            if not isinstance(value, without):
                yield from settings(value, f"{prefix}{part.name}.", without)
        else:
            yield Setting(f"{prefix}{part.name}", cfg, part.name, hints[part.name], value)


def names(cfg: Any) -> Iterator[str]:
    """The first part of every path: what a table of settings has as keys."""
    for part in given_fields(cfg):
        if not is_inline(part):
            yield part.name
            continue
        if chooser(part) is not None:
            yield part.name
        yield from names(getattr(cfg, part.name))


def is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


_HINTS: dict[type[Any], dict[str, Any]] = {}
"""The answers of `type_hints`, since evaluating the annotations of a class takes milliseconds."""


def type_hints(config: type[Any]) -> dict[str, Any]:
    """The types of a config's fields."""
    if config not in _HINTS:
        _HINTS[config] = typing.get_type_hints(config)
    return _HINTS[config]


def flattened(cfg: Any) -> Any:
    """The same settings in one dataclass without inline fields, as a parser of flags reads them."""
    fields: list[Any] = [
        (name, hint, dataclasses.field(default_factory=functools.partial(_same, value)))
        for name, hint, value in _top_level(cfg)
    ]
    return dataclasses.make_dataclass(type(cfg).__name__, fields, frozen=True)()


def _top_level(cfg: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and value of each field of `flattened`; a nested config has the type of its value."""
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
