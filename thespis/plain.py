"""Settings as plain values and back, in memory and in YAML files."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from thespis.config import locate
from thespis.errors import ThespisError

C = TypeVar("C")


def to_dict(cfg: Any) -> dict[str, Any]:
    """Plain values, for YAML. A function is written as where to find it."""
    out: dict[str, Any] = {}
    for part in dataclasses.fields(cfg):
        value = getattr(cfg, part.name)
        if callable(value):
            out[part.name] = locate(value)
        elif dataclasses.is_dataclass(value):
            out[part.name] = to_dict(value)
        elif isinstance(value, tuple):
            out[part.name] = list(value)
        else:
            out[part.name] = str(value) if isinstance(value, Path) else value
    return out


def from_dict(cls: type[C], data: Mapping[str, Any], default: C | None = None, path: str = "") -> C:
    """The inverse of `to_dict`; what `data` leaves out keeps its value in `default`."""
    if not isinstance(data, Mapping):
        raise ThespisError(f"config: {path or 'the file'} should be a table of settings, not {data!r}")
    hints = typing.get_type_hints(cls)
    known = [part.name for part in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = [name for name in data if name not in known]
    if unknown:
        raise ThespisError(f"config: unknown setting {path}{unknown[0]!r}; known are {', '.join(known)}")
    base = cls() if default is None else default
    values = {name: _convert(value, hints[name], f"{path}{name}", getattr(base, name)) for name, value in data.items()}
    return dataclasses.replace(base, **values)  # type: ignore[type-var]


def _convert(value: Any, hint: Any, path: str, default: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        return from_dict(hint, value, default, f"{path}.")  # type: ignore[arg-type]
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _convert(value, next(option for option in options if option is not type(None)), path, default)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(item, options[0], path, None) for item in value)
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
        except ValueError:
            pass
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ThespisError(f"config: {path} is {value!r}, which is not {getattr(hint, '__name__', hint)}")


def load_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ThespisError(f"config {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ThespisError(f"config {path} should be a table of settings")
    # YAML 1.1 takes a bare `on` for true.
    return {"on" if key is True else key: value for key, value in data.items()}


def dump_yaml(data: dict[str, Any]) -> bytes:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None)
    return text.encode()
