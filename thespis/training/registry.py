"""Architectures by name or file, their defaults for an environment, and configs on disk.

This module imports an architecture only on request, because architectures are in a higher layer.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from thespis.core.config import Experiment
from thespis.core.config_io import UnknownSetting, dump_yaml, load_yaml, to_dict, with_settings
from thespis.core.errors import ThespisError
from thespis.core.system.commit import commit_file
from thespis.core.user_code import load_file
from thespis.training.presets import Preset, load_presets, matching, named_env

_PACKAGE = "thespis.architectures"
PAIRS: Mapping[str, tuple[str, str]] = importlib.import_module(_PACKAGE).USUAL_PAIRS
"""The architecture and the algorithm of each short name."""


def architectures() -> list[str]:
    """Return the names of all architectures."""
    package = importlib.import_module(_PACKAGE)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in names if name not in package.SHARED)


def trainable() -> list[str]:
    """Return all names that `train` accepts: architectures and short names."""
    return sorted([*architectures(), *PAIRS])


def pair(name: str) -> tuple[str, str | None]:
    """Return the architecture of a name, and the algorithm if it is a short name, else None."""
    return PAIRS.get(name.replace("_", "-"), (name, None))


def pair_name(architecture: str, algorithm: str | None) -> str:
    """Return the short name of an architecture with an algorithm, or the architecture's name if there is none."""
    return next((name for name, both in PAIRS.items() if both == (architecture, algorithm)), architecture)


def architecture(name: str) -> ModuleType:
    """Import the module of an architecture by its name or file. The module defines `Config` and `program`.

    It may also define `validate(cfg, spaces)`, called before any process starts, and `on_finish(cfg, path)`, called
    after the run; the run prints the lines that `on_finish` returns.
    """
    if name.endswith(".py"):
        return _load_custom(name)
    name, _ = pair(name)
    if name.replace("_", "-") not in architectures():
        raise ThespisError(f"unknown architecture {name!r}; choose from {', '.join(trainable())}")
    return importlib.import_module(f"{_PACKAGE}.{name.replace('-', '_')}")


def _load_custom(file: str) -> ModuleType:
    try:
        module = load_file(Path(file))
        if not hasattr(module, "Config") or not hasattr(module, "program"):
            raise AttributeError("an architecture needs a Config and a program(cfg)")
    except Exception as error:
        raise ThespisError(f"architecture {file!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def defaults(name: str, env: str | None, data: Mapping[str, Any]) -> Experiment:
    """Return the settings of an architecture for an environment: `data` overrides presets, which override the class.

    Without an environment, the presets of the default environment apply. A run with a time limit but no step limit in
    `data` has no step limit, even if its preset has one.
    """
    cfg: Experiment = architecture(name).Config()
    rest = dict(data)
    _, paired = pair(name)
    chosen = rest.pop("algorithm", paired)
    if chosen is not None:
        cfg = with_settings(cfg, {"algorithm": chosen})
    found = presets(name, cfg)
    env = env or rest.get("env") or named_env(found)
    for preset in matching(found, env):
        cfg = with_settings(cfg, preset.settings)
    if rest.get("total_seconds") is not None:
        rest = {"total_steps": None, **rest}
    return with_settings(cfg, {**rest, **({"env": env} if env else {})})


def presets(name: str, cfg: Experiment) -> list[Preset]:
    """Return the presets of an architecture with the algorithm of `cfg`."""
    if name.endswith(".py"):
        return [Preset(pattern, "", found) for pattern, found in getattr(architecture(name), "PRESETS", {}).items()]
    return load_presets(pair(name)[0], None if cfg.learned is None else cfg.learned.name)


def config_of_run(path: Path, name: str, data: Mapping[str, Any]) -> Experiment:
    """Build the config of a run from `name` and `data` of its config.yaml."""
    try:
        return defaults(name, None, data)
    except UnknownSetting as error:
        raise ThespisError(
            f"{path} has settings that this version of Thespis does not know, so the run cannot be resumed or played "
            f"({error}); start a new run, perhaps with --init-from {path}"
        ) from None


_RENAMED = {"gradient_dtype": "gradients"}
"""Settings of earlier versions that have another name now, and the same values."""


def load_config(path: Path) -> tuple[str, dict[str, Any]]:
    """Read the architecture and the settings of a config file, such as the config.yaml of a run directory.

    A short name becomes its architecture and an algorithm setting, because `apex-dpg` and `r2d2` were architectures in
    earlier versions. A renamed setting has its new name.
    """
    data = {_RENAMED.get(setting, setting): value for setting, value in load_yaml(path).items()}
    name = data.pop("architecture", None)
    if not isinstance(name, str):
        raise ThespisError(f"config {path} has no architecture; add a line such as `architecture: impala`")
    name, paired = pair(name)
    return name, data if paired is None else {"algorithm": paired, **data}


def write_config(path: Path, name: str, cfg: Experiment) -> None:
    """Write all settings of a run, for `load_config`."""
    where = str(Path(name).resolve()) if name.endswith(".py") else pair(name)[0]
    commit_file(path, dump_yaml({"architecture": where, **to_dict(cfg)}))
