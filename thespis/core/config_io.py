"""Settings as plain values and back, in memory and in YAML files."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from thespis.core.errors import ThespisError
from thespis.core.quantity import whole
from thespis.core.settings import chooser, given_fields, is_config, is_inline, names, type_hints
from thespis.core.user_code import locate
from thespis.core.yaml_file import read_yaml

C = TypeVar("C")


class UnknownSetting(ThespisError):
    """A table names a setting that a config does not have."""


def to_dict(cfg: Any) -> dict[str, Any]:
    """Plain values by their short names, for YAML. A function becomes the place to find it, a path becomes absolute.

    `PATHS` of a config names its text settings that may be a directory.
    """
    out: dict[str, Any] = {}
    paths = getattr(cfg, "PATHS", ())
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if is_inline(part):
            if chooser(part) is not None:
                out[part.name] = _anywhere(value.name)
            out |= to_dict(value)
        elif callable(value):
            out[part.name] = locate(value)
        elif is_config(value):
            out[part.name] = to_dict(value)
        elif isinstance(value, tuple):
            out[part.name] = [locate(item) if callable(item) else _anywhere(item) for item in value]
        else:
            directory = part.name in paths and value and Path(value).is_dir()
            out[part.name] = _anywhere(Path(value) if directory else value)
    return out


def _anywhere(value: Any) -> Any:
    """A path, also that in `file.py::name`, as it can be found from any directory."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, str) and ".py::" in value:
        file, _, name = value.partition("::")
        return f"{Path(file).absolute()}::{name}"
    return value


def plain_value(value: Any, path: str) -> Any:
    """`value` as YAML would give it back, so that a run that is loaded has what the run had; refuses what it cannot."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, path) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "tolist"):  # a number or an array of numpy
        return value.tolist()
    raise ThespisError(
        f"config: {path} is a {type(value).__name__}, which config.yaml cannot hold; give plain values, or as env a "
        "function that makes the environment"
    )


def updated(cfg: C, data: Mapping[str, Any], path: str = "") -> C:
    """The config with the settings in `data` replaced, by their short names; nested ones are tables of their own."""
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
        values[part.name] = updated(value, {name: rest.pop(name) for name in own if name in rest}, path)
    hints = type_hints(type(cfg))
    for part in parts:
        if not is_inline(part) and part.name in rest:
            given = rest.pop(part.name)
            values[part.name] = _convert(given, hints[part.name], f"{path}{part.name}", getattr(cfg, part.name))
    if rest:
        known = [*(part.name for part in parts if not is_inline(part)), *nested]
        raise UnknownSetting(f"config: unknown setting {path}{next(iter(rest))!r}; known are {', '.join(known)}")
    return dataclasses.replace(cfg, **values)  # type: ignore[type-var]


def _convert(value: Any, hint: Any, path: str, default: Any) -> Any:
    if is_config(default):
        return value if isinstance(value, type(default)) else updated(default, value, f"{path}.")
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
            return whole(value if isinstance(value, str) else f"{value:.0f}" if value.is_integer() else repr(value))
        except ValueError:
            pass
    elif (
        isinstance(hint, type)
        and origin is None
        and isinstance(value, hint)
        and not (hint is int and isinstance(value, bool))
    ):
        return value
    raise ThespisError(f"config: {path} is {value!r}, which is not {getattr(hint, '__name__', hint)}")


def load_yaml(path: Path) -> dict[str, Any]:
    data = read_yaml(path, "config")
    if not isinstance(data, dict):
        raise ThespisError(f"config {path} should be a table of settings")
    # YAML 1.1 takes a bare `on` for true.
    return {"on" if key is True else key: value for key, value in data.items()}


def dump_yaml(data: dict[str, Any]) -> bytes:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None)
    return text.encode()
