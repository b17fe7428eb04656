"""Architectures by name or file, their defaults for an environment, and configs on disk.

Architectures are found by name when they are asked for: nothing here imports one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from thespis.core.config import Experiment
from thespis.core.config_io import UnknownSetting, dump_yaml, load_yaml, to_dict, updated
from thespis.core.errors import ThespisError
from thespis.core.system.commit import commit_file
from thespis.core.user_code import load_file
from thespis.training.presets import Preset, load_presets, matching, named_env

_PACKAGE = "thespis.architectures"
PAIRS: Mapping[str, tuple[str, str]] = importlib.import_module(_PACKAGE).PAIRS
"""Architecture and algorithm of each short name."""


def architectures() -> list[str]:
    """The architectures there are."""
    package = importlib.import_module(_PACKAGE)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in names if name not in package.SHARED)


def trainable() -> list[str]:
    """All names that can be trained: architectures, and algorithms in their usual one."""
    return sorted([*architectures(), *PAIRS])


def pair(name: str) -> tuple[str, str | None]:
    """The architecture that a name stands for, and the algorithm if the name says that too."""
    return PAIRS.get(name.replace("_", "-"), (name, None))


def pair_name(architecture: str, algorithm: str | None) -> str:
    """The name of an architecture with an algorithm: the name of the pair, or of the architecture if there is none."""
    return next((name for name, both in PAIRS.items() if both == (architecture, algorithm)), architecture)


def architecture(name: str) -> ModuleType:
    """The module of an architecture, by its name or its file: a `Config` and a `program`.

    It may also `validate(cfg, spaces)` what it can store and serve, before anything starts, and `on_finish(cfg, path)`
    with what is to be made of a run that has ended, and said of it.
    """
    if name.endswith(".py"):
        return _own(name)
    name, _ = pair(name)
    if name.replace("_", "-") not in architectures():
        raise ThespisError(f"unknown architecture {name!r}; there is {', '.join(trainable())}")
    return importlib.import_module(f"{_PACKAGE}.{name.replace('-', '_')}")


def _own(file: str) -> ModuleType:
    try:
        module = load_file(Path(file))
        if not hasattr(module, "Config") or not hasattr(module, "program"):
            raise AttributeError("an architecture needs a Config and a program(cfg)")
    except Exception as error:
        raise ThespisError(f"architecture {file!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def defaults(name: str, env: str | None, data: Mapping[str, Any]) -> Experiment:
    """The defaults of an architecture for an environment, overridden by `data`: class < preset < data.

    Without an environment, presets apply for the one that they name themselves, if they do.
    A run that is given seconds but no steps has no limit of steps, whatever its preset says.
    """
    cfg: Experiment = architecture(name).Config()
    rest = dict(data)
    _, paired = pair(name)
    chosen = rest.pop("algorithm", paired)
    if chosen is not None:
        cfg = updated(cfg, {"algorithm": chosen})
    found = presets(name, cfg)
    env = env or rest.get("env") or named_env(found)
    for preset in matching(found, env):
        cfg = updated(cfg, preset.settings)
    if rest.get("total_seconds") is not None:
        rest = {"total_steps": None, **rest}
    return updated(cfg, {**rest, **({"env": env} if env else {})})


def presets(name: str, cfg: Experiment) -> list[Preset]:
    """What changes the defaults of an architecture with the algorithm of `cfg`, by patterns of environments."""
    if name.endswith(".py"):
        return [Preset(pattern, "", found) for pattern, found in getattr(architecture(name), "PRESETS", {}).items()]
    return load_presets(pair(name)[0], None if cfg.learned is None else cfg.learned.name)


def config_of_run(path: Path, name: str, data: Mapping[str, Any]) -> Experiment:
    """The config of a run, whose config.yaml says `name` and `data`."""
    try:
        return defaults(name, None, data)
    except UnknownSetting as error:
        raise ThespisError(
            f"{path} has settings that this version of Thespis does not read, so it can be neither resumed nor played "
            f"({error}); start a new run, perhaps with --init-from {path}"
        ) from None


def load_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The architecture and settings in a config file, such as the one in a run directory.

    A name of a pair gives its architecture, and its algorithm as a setting: `apex-dpg` and `r2d2` were architectures,
    and their runs say so.
    """
    data = load_yaml(path)
    name = data.pop("architecture", None)
    if not isinstance(name, str):
        raise ThespisError(f"config {path} does not say its architecture; add a line such as `architecture: impala`")
    name, paired = pair(name)
    return name, data if paired is None else {"algorithm": paired, **data}


def write_config(path: Path, name: str, cfg: Experiment) -> None:
    """All settings of a run, for `load_config`."""
    where = str(Path(name).resolve()) if name.endswith(".py") else pair(name)[0]
    commit_file(path, dump_yaml({"architecture": where, **to_dict(cfg)}))
