"""Presets: YAML files that change the defaults of an architecture for some environments.

Each architecture has one file, with tables by algorithm and then by a pattern of the environment's id. The algorithm
`any` applies to algorithms without a table. The pattern `*` applies to all environments; its `env` is the default
environment. `like: NAME` includes the presets of another architecture for the same algorithm. `source` gives the origin
of the values: a paper's table, or a measurement.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from thespis.core.yaml_file import read_yaml

_DIRECTORY = Path(__file__).parents[1] / "architectures" / "presets"


class Preset(NamedTuple):
    """Settings for the environments whose id matches a pattern."""

    pattern: str
    source: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, pattern: str, table: Mapping[str, Any]) -> Preset:
        """Build a preset from its table in the file."""
        return cls(pattern, table["source"], {name: value for name, value in table.items() if name != "source"})


def load_presets(architecture: str, algorithm: str | None) -> list[Preset]:
    """Load the presets of an architecture with an algorithm, in the order in which they apply."""
    tables = _read_tables(architecture)
    table = tables.get(algorithm, tables.get("any", {}))
    own = [Preset.of(pattern, preset) for pattern, preset in table.items() if pattern != "like"]
    like = load_presets(table["like"], algorithm) if "like" in table else []
    return [each for each in own if each.pattern == "*"] + like + [each for each in own if each.pattern != "*"]


@functools.cache
def _read_tables(architecture: str) -> Mapping[str | None, Any]:
    path = _DIRECTORY / f"{architecture.replace('-', '_')}.yaml"
    tables: Mapping[str | None, Any] = read_yaml(path, "presets") if path.is_file() else {}
    return tables


def matching(presets: Iterable[Preset], env: object) -> list[Preset]:
    """Return the presets that match an environment's id. For a function only the pattern `*` matches."""
    return [each for each in presets if fnmatch.fnmatch(env if isinstance(env, str) else "", each.pattern)]


def named_env(presets: Iterable[Preset]) -> str | None:
    """Return the default environment of the presets, or None."""
    named: list[str] = [each.settings["env"] for each in presets if each.pattern == "*" and "env" in each.settings]
    return named[-1] if named else None
