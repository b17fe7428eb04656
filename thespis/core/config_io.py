"""Converts configs to plain values and back, in memory and in YAML files."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int
from thespis.core.settings import chooser, given_fields, is_config, is_inline, names, type_hints
from thespis.core.user_code import locate
from thespis.core.yaml_file import read_yaml

_C = TypeVar("_C")


class UnknownSetting(ThespisError):
    """A config file or call names a setting that the config does not have."""


def to_dict(cfg: Any) -> dict[str, Any]:
    """Return the settings as plain values by short name, for YAML.

    A function becomes its location, and a path becomes absolute. A config's `PATHS` lists text settings that may be
    directories.
    """
    out: dict[str, Any] = {}
    paths = getattr(cfg, "PATHS", ())
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if is_inline(part):
            if chooser(part) is not None:
                out[part.name] = _absolute(value.name)
            out |= to_dict(value)
        elif callable(value):
            out[part.name] = locate(value)
        elif is_config(value):
            out[part.name] = to_dict(value)
        elif isinstance(value, tuple):
            out[part.name] = [locate(item) if callable(item) else _absolute(item) for item in value]
        else:
            directory = part.name in paths and value and Path(value).is_dir()
            out[part.name] = _absolute(Path(value) if directory else value)
    return out


def _absolute(value: Any) -> Any:
    """Make a path absolute, also the path in `file.py::name`, so that it is valid in any working directory."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, str) and ".py::" in value:
        file, _, name = value.partition("::")
        return f"{Path(file).absolute()}::{name}"
    return value


def plain_value(value: Any, path: str) -> Any:
    """Return `value` as YAML reads it back, so that a loaded run has equal settings; refuse values YAML cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, path) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "tolist"):  # a numpy number or array
        return value.tolist()
    raise ThespisError(
        f"config: {path} is a {type(value).__name__}, which config.yaml cannot hold; give plain values, or pass a "
        "function that makes the environment as `env`"
    )


def with_settings(cfg: _C, data: Mapping[str, Any], path: str = "") -> _C:
    """Return a copy of the config with the settings in `data`, by short name; nested settings are nested tables."""
    if not isinstance(data, Mapping):
        raise ThespisError(f"config: {path or 'the file'} should be a table of settings, not {data!r}")
    rest, values = dict(data), {}
    parts = given_fields(cfg)
    nested: list[str] = []
    for part in filter(is_inline, parts):
        value, choose = getattr(cfg, part.name), chooser(part)
        if choose is not None:
            nested.append(part.name)
            if (given := rest.pop(part.name, value)) is not value and given != value.name:
                value = choose(given, type(cfg))
        own = list(names(value))
        nested += own
        values[part.name] = with_settings(value, {name: rest.pop(name) for name in own if name in rest}, path)
    hints = type_hints(type(cfg))
    for part in parts:
        if not is_inline(part) and part.name in rest:
            given = rest.pop(part.name)
            values[part.name] = _convert(given, hints[part.name], f"{path}{part.name}", getattr(cfg, part.name))
    if rest:
        known = [*(part.name for part in parts if not is_inline(part)), *nested]
        raise UnknownSetting(f"config: unknown setting {path}{next(iter(rest))!r}; the settings are {', '.join(known)}")
    return dataclasses.replace(cfg, **values)  # type: ignore[type-var]


def _convert(value: Any, hint: Any, path: str, default: Any) -> Any:
    if is_config(default):
        return value if isinstance(value, type(default)) else with_settings(default, value, f"{path}.")
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _convert(value, next(option for option in options if option is not type(None)), path, default)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(item, options[0], path, None) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return plain_value(value, path)
    if origin is Literal:
        if value in options:
            return value
        raise ThespisError(f"config: {path} is {value!r}; choose {', '.join(map(str, options))}")
    if hint is str and callable(value):
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except (ValueError, OverflowError):
            pass
    elif hint is int and isinstance(value, str | float):
        try:
            return parse_int(value if isinstance(value, str) else f"{value:.0f}" if value.is_integer() else repr(value))
        except ValueError:
            pass
    elif (
        isinstance(hint, type)
        and origin is None
        and isinstance(value, hint)
        and not (hint is int and isinstance(value, bool))
    ):
        return value
    if path == "env" and hasattr(value, "step"):
        raise ThespisError(
            "config: env is a single environment, but every actor makes its own; give an id, file.py::function, or a "
            "function that makes one"
        )
    raise ThespisError(f"config: {path} is {value!r}, which is not {getattr(hint, '__name__', hint)}")


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a config file as a dict of settings."""
    data = read_yaml(path, "config")
    if not isinstance(data, dict):
        raise ThespisError(f"config {path} should be a table of settings")
    # YAML 1.1 reads a bare `on` as true.
    return {"on" if key is True else key: value for key, value in data.items()}


def dump_yaml(data: dict[str, Any]) -> bytes:
    """Return settings as the content of a YAML file."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None)
    return text.encode()
