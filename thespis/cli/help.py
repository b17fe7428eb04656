"""`thespis train ARCH --help`: the most used settings on one screen, then every setting in groups, with the defaults.

This module writes the help instead of the parser: it imports neither the parser nor a terminal library, and it groups
related settings.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

from thespis.core.config import Experiment
from thespis.core.settings import walk_settings

FIRST = {
    "env": "Gymnasium id, or file.py::function",
    "algorithm": "",
    "member": "",
    "total_steps": "Stop at N environment steps",
    "total_seconds": "Stop after X seconds",
    "stop_at_return": "Stop at this mean training return",
    "actors": "Processes that step environments",
    "envs_per_actor": "Environments per actor",
    "learners": "",
    "optimizer.learning_rate": "Initial learning rate",
    "checkpoint_every": "Save a checkpoint every X seconds",
    "seed": "Random seed",
    "on": "Runtime",
    "run_dir": "Directory of the run",
}
"""Settings of the first screen, in this order, with a short text; without one, the first sentence of the full text."""
GROUPS = {
    "evaluation, reports and checkpoints": (
        "eval_every",
        "eval_episodes",
        "eval_max_steps",
        "report_every",
        "checkpoint_every",
        "track_info",
        "callback",
        "save_every",
        "keep",
    ),
    "limits": ("env_timeout", "stall_timeout", "placement_timeout"),
    "runtime": ("ray_address", "actors_per_node", "cost_model", "faults"),
}
"""Groups of settings that every architecture has. Their other common settings are in `_OTHERS`."""
_ARCHITECTURE = "architecture"
_OTHERS = "environment and run"
_CONFIG = "--config FILE", "Settings from a config.yaml; flags override them"
_COLUMN = 30


class HelpEntry(NamedTuple):
    """A flag, its help text, the same in short, and the title of its group."""

    path: str
    usage: str
    about: str
    brief: str
    group: str


def help_text(usage: str, default: Experiment, about: str) -> str:
    """Return the help of a command with the settings of `default`; their values are the defaults shown."""
    described = list(_described(default))
    groups: dict[str, list[HelpEntry]] = {}
    for each in described:
        groups.setdefault(each.group, []).append(each)
    last = [group for group in (_OTHERS, *GROUPS) if group in groups]
    middle = sorted((group for group in groups if group not in last), key=lambda group: group != _ARCHITECTURE)
    shown = [(each.usage, each.brief) for wanted in FIRST for each in described if each.path == wanted]
    shown += [_CONFIG] if "--config" in usage else []
    lines = [
        f"usage: {usage} [settings]",
        "",
        "most used (in full below):",
        *_rows([*shown, ("-h, --help", "Show this help")]),
        "video of a trained policy: thespis eval RUN --video FILE.gif",
        "",
        *_wrapped(" ".join((type(default).__doc__ or "").split())),
        *_wrapped(about),
        *_wrapped("A flag may drop the part before its dot if no other flag ends in the same name."),
    ]
    for group in [*middle, *last]:
        lines += ["", f"{group}:", *_rows([(each.usage, each.about) for each in groups[group]])]
    return "\n".join(lines)


def about_defaults(default: Experiment, patterns: list[str], env: str | None) -> str:
    """Return a sentence on the origin of the defaults.

    `patterns`: environments with a preset. `env`: the environment of the command line, if any.
    """
    if env is not None or not patterns:
        return f"Defaults are for {default.env_name}."
    known = ", ".join(patterns)
    return f"Presets change some defaults for {known}; add --env ID to see the defaults of an environment."


def _described(default: Experiment) -> Iterator[HelpEntry]:
    shared = dict.fromkeys((part.name for part in dataclasses.fields(Experiment)), _OTHERS)
    shared |= {name: group for group, names in GROUPS.items() for name in names}
    algorithm: Any = getattr(default, "algorithm", None)
    learned = {each.path for each in walk_settings(algorithm)} if algorithm is not None else set()
    for path, owner, name, hint, value, chooses in walk_settings(default):
        about = _choices(type(owner)) if chooses else _docstrings(type(owner)).get(name, "")
        inherited = "." in path or about == _docstrings(Experiment).get(name)
        brief = FIRST.get(path, "") if inherited else ""
        brief = brief or about.partition(". ")[0].partition("; ")[0].rstrip(".")
        outer = path.rpartition(".")[0].partition(".")[0]
        own = f"algorithm {algorithm.name}" if path in learned else _ARCHITECTURE
        group = outer or shared.get(path) or own
        shown = _default(value)
        yield HelpEntry(path, _usage(path, hint), f"{about} {shown}".strip(), f"{brief} {shown}", group)


def _choices(config: type[Any]) -> str:
    """The help text of --algorithm."""
    from thespis.algorithms import fitting_algorithms

    names = ", ".join(fitting_algorithms(config))
    return f"Learning algorithm: {names}, or file.py::Class. Each has its own settings."


def _usage(path: str, hint: Any) -> str:
    outer, dot, leaf = f"--{path.replace('_', '-')}".rpartition(".")
    if hint is bool:
        stem = f"{outer}{dot}" or "--"
        leaf = leaf.removeprefix("--")
        return f"{stem}{leaf}, {stem}no-{leaf}"
    names = ".NAME" if typing.get_origin(hint) in (dict, Mapping) else ""
    return f"{outer}{dot}{leaf}{names} {_metavar(hint)}"


def _metavar(hint: Any) -> str:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(map(str, options)) + "}"
    if typing.get_origin(hint) in (Union, types.UnionType):
        return _metavar(options[0])
    if typing.get_origin(hint) is tuple:
        return f"{_metavar(options[0])} ..."
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(hint, "VALUE")


def _default(value: Any) -> str:
    if isinstance(value, bool):
        shown = "on" if value else "off"
    elif isinstance(value, tuple):
        shown = " ".join(map(str, value)) or "none"
    elif isinstance(value, int):
        shown = f"{value:,}".replace(",", "_") if value >= 10_000 else str(value)
    else:
        shown = "none" if value is None or value in ("", {}) else str(value)
    return f"(default: {shown})"


def _docstrings(config: type[Any]) -> dict[str, str]:
    """The docstring below each field of a class. A field without a docstring inherits the docstring of its base."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        found |= _module_docstrings(base.__module__).get(base.__name__, {}) if dataclasses.is_dataclass(base) else {}
    return found


@functools.cache
def _module_docstrings(module: str) -> dict[str, dict[str, str]]:
    """The field docstrings of every class in a module; empty if there is no source, as in a notebook."""
    try:
        tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text())
    except (OSError, AttributeError, SyntaxError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        texts = found.setdefault(node.name, {})
        for field, below in itertools.pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                words = below.value.value if isinstance(below.value, ast.Constant) else ""
                texts[field.target.id] = " ".join(str(words).split())
    return found


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, _width())


def _rows(rows: list[tuple[str, str]]) -> Iterator[str]:
    for usage, about in rows:
        lines = textwrap.wrap(about, _width() - _COLUMN)
        if len(usage) + 3 > _COLUMN:
            yield f"  {usage}"
        else:
            yield f"  {usage:{_COLUMN - 2}}{lines.pop(0) if lines else ''}".rstrip()
        yield from (" " * _COLUMN + line for line in lines)


def _width() -> int:
    return min(max(60, shutil.get_terminal_size((120, 24)).columns), 140)
