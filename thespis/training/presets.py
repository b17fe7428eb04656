"""Presets: what changes the defaults for some environments, as data, with where each comes from.

A file per architecture: by algorithm, then by a pattern of the environment's id. The algorithm `any` is for all that
have no table. The pattern `*` is for all environments: how an architecture differs with that algorithm; its `env` is
the environment of a run that is given none. `like: NAME` takes over the presets of another architecture for the same
algorithm. `source` says where the values come from: a paper's table, or a measurement.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from thespis.core.yaml_file import read_yaml

_DIRECTORY = Path(__file__).parents[1] / "architectures" / "presets"


class Preset(NamedTuple):
    """Settings for the environments whose id matches the pattern."""

    pattern: str
    source: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, pattern: str, table: Mapping[str, Any]) -> Preset:
        return cls(pattern, table["source"], {name: value for name, value in table.items() if name != "source"})


def load_presets(architecture: str, algorithm: str | None) -> list[Preset]:
    """The presets of an architecture with an algorithm, in the order in which they apply."""
    path = _DIRECTORY / f"{architecture.replace('-', '_')}.yaml"
    if not path.is_file():
        return []
    tables = read_yaml(path, "presets")
    table = tables.get(algorithm, tables.get("any", {}))
    own = [Preset.of(pattern, preset) for pattern, preset in table.items() if pattern != "like"]
    like = load_presets(table["like"], algorithm) if "like" in table else []
    return [each for each in own if each.pattern == "*"] + like + [each for each in own if each.pattern != "*"]


def matching(presets: Iterable[Preset], env: object) -> list[Preset]:
    """Those for an environment's id; an environment that is a function has none but `*`."""
    return [each for each in presets if fnmatch.fnmatch(env if isinstance(env, str) else "", each.pattern)]


def named_env(presets: Iterable[Preset]) -> str | None:
    """The environment that the presets for all environments name for a run that is given none."""
    named: list[str] = [each.settings["env"] for each in presets if each.pattern == "*" and "env" in each.settings]
    return named[-1] if named else None
