"""`thespis train ARCH --help`: what matters first, then everything else in groups, with the defaults of that run.

Written here rather than by the parser: it needs neither the parser nor a terminal library, and knows what belongs
together.
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
from thespis.core.settings import settings

FIRST = (
    "env", "algorithm", "member", "total_steps", "total_seconds", "stop_at_return", "seed", "on", "actors",
    "envs_per_actor", "learners", "optimizer.learning_rate", "run_dir",
)  # fmt: skip
"""What a first run is likely to set, in this order."""
GROUPS = {
    "evaluation, reports and checkpoints": (
        "eval_every",
        "eval_episodes",
        "eval_max_steps",
        "report_every",
        "track_info",
        "callback",
        "checkpoint_every",
        "save_every",
        "keep",
    ),
    "limits": ("env_timeout", "stall_timeout", "placement_timeout"),
    "runtime": ("ray_address", "actors_per_node", "cost_model", "faults"),
}
"""Settings that every architecture has; what else all have is about the environment and the run."""
_ARCHITECTURE = "architecture"
_OTHERS = "environment and run"
_CONFIG = "--config FILE", "A config.yaml, such as that of an earlier run; flags override what is in it."
_COLUMN = 30


class Setting(NamedTuple):
    """A flag as it is shown."""

    path: str
    usage: str
    about: str
    group: str


def help_text(usage: str, default: Experiment, about: str) -> str:
    """The help of a command that takes the settings of `default`, whose values are shown as defaults."""
    described = list(_described(default))
    first = [each for wanted in FIRST for each in described if each.path == wanted]
    groups: dict[str, list[Setting]] = {}
    for each in described:
        if each not in first:
            groups.setdefault(each.group, []).append(each)
    last = [group for group in (_OTHERS, *GROUPS) if group in groups]
    middle = sorted((group for group in groups if group not in last), key=lambda group: group != _ARCHITECTURE)
    lines = [
        f"usage: {usage} [settings]",
        "",
        *_wrapped(" ".join((type(default).__doc__ or "").split())),
        *_wrapped(about),
        *_wrapped("A nested flag may be given without what is before its dot where no other flag ends in that name."),
    ]
    shown = [(each.usage, each.about) for each in first]
    shown += [_CONFIG] if "--config" in usage else []
    lines += ["", "most used:", *_rows([*shown, ("-h, --help", "Show this.")])]
    for group in [*middle, *last]:
        lines += ["", f"{group}:", *_rows([(each.usage, each.about) for each in groups[group]])]
    return "\n".join(lines)


def about_defaults(default: Experiment, patterns: list[str], env: str | None) -> str:
    """What the defaults are of. `patterns`: of environments with a preset. `env`: what was given, if anything."""
    if env is not None or not patterns:
        return f"Defaults are those for {default.env_name}."
    known = ", ".join(patterns)
    return f"Presets change some defaults for {known}; add --env ID to see those of an environment."


def _described(default: Experiment) -> Iterator[Setting]:
    shared = dict.fromkeys((part.name for part in dataclasses.fields(Experiment)), _OTHERS)
    shared |= {name: group for group, names in GROUPS.items() for name in names}
    algorithm: Any = getattr(default, "algorithm", None)
    learned = {each.path for each in settings(algorithm)} if algorithm is not None else set()
    for path, owner, name, hint, value, chooses in settings(default):
        about = f"{_docstrings(type(owner)).get(name, '')} {_default(value)}".strip()
        if chooses:
            about = f"{_choices(type(owner))} {_default(value)}"
        outer = path.rpartition(".")[0].partition(".")[0]
        own = f"algorithm {algorithm.name}" if path in learned else _ARCHITECTURE
        yield Setting(path, _usage(path, hint), about, outer or shared.get(path) or own)


def _choices(config: type[Any]) -> str:
    """What may be given for --algorithm."""
    from thespis.algorithms.base import fitting

    return f"What is learned and how: {', '.join(fitting(config))}, or file.py::Class. Each has its own settings."


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
    """The text below each field of a class or of its bases; a field that is declared anew without one keeps it."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        found |= _module_docstrings(base.__module__).get(base.__name__, {}) if dataclasses.is_dataclass(base) else {}
    return found


@functools.cache
def _module_docstrings(module: str) -> dict[str, dict[str, str]]:
    """For every class of a module the text below each of its fields. No source, as in a notebook: nothing."""
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
        if len(usage) + 4 > _COLUMN:
            yield f"  {usage}"
        else:
            yield f"  {usage:{_COLUMN - 2}}{lines.pop(0) if lines else ''}".rstrip()
        yield from (" " * _COLUMN + line for line in lines)


def _width() -> int:
    return min(max(60, shutil.get_terminal_size((120, 24)).columns), 140)
