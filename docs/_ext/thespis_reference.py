"""Writes the reference pages from the code, as Markdown: commands, settings, presets and the Python API.

A page requests a part by a line such as `<!-- generated: settings shared -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import thespis
from thespis.algorithms import algorithms, fitting_algorithms
from thespis.cli import help as cli_help
from thespis.cli import main as cli_main
from thespis.core.bounds import Bounds
from thespis.core.config import Experiment
from thespis.core.settings import Setting
from thespis.core.settings import walk_settings as settings
from thespis.training.presets import Preset, load_presets
from thespis.training.registry import PAIRS, architecture, architectures

DOCS = Path(__file__).resolve().parents[1]
PACKAGE = Path(thespis.__file__).parent


def generate(words: list[str]) -> str:
    """Return the part of a page that `words` name."""
    name, *rest = words
    parts = {"commands": commands, "settings": setting_tables, "presets": presets, "api": api}
    if name == "topology":
        return drawing(rest)
    return parts[name](*rest)


def drawing(words: list[str]) -> str:
    """Return the graph of an architecture, as `thespis show` draws it."""
    from thespis_site import run

    svg = run(["show", *words, "--format", "svg"])
    return f'```{{raw}} html\n<div class="topology-scroll">{svg}</div>\n```'


# -- commands --------------------------------------------------------------------------------------


def command_names() -> list[str]:
    """Return the commands that `thespis --help` lists."""
    return re.findall(r"^  (\w+) ", cli_main.HELP, flags=re.MULTILINE)


def commands() -> str:
    """Return every command with its help."""
    from thespis_site import run

    os.environ["COLUMNS"], os.environ["NO_COLOR"] = "96", "1"
    parts = ["## thespis\n", _code(run(["--help"]))]
    for name in command_names():
        parts += [f"\n## thespis {name}\n", _code(run([name, "--help"]))]
    return "\n".join(parts)


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


# -- settings --------------------------------------------------------------------------------------


def setting_tables(which: str) -> str:
    return {"shared": _shared, "architectures": _architectures, "algorithms": _algorithms}[which]()


def _shared() -> str:
    """Return the settings of every architecture, in the groups of `--help`."""
    rest = {each.path: each for each in settings(Experiment())}
    first = [rest.pop(path) for path in cli_help.FIRST if path in rest]
    groups = {"Most used": first}
    for group, paths in cli_help.GROUPS.items():
        groups[group.capitalize()] = [rest.pop(path) for path in paths if path in rest]
    groups["Environment and run"] = list(rest.values())
    return "\n\n".join(f"## {group}\n\n{_table(each)}" for group, each in groups.items())


def _architectures() -> str:
    """Return the settings that each architecture adds, and the shared defaults that it changes."""
    shared = {each.path: each.value for each in settings(Experiment())}
    parts = []
    for name in architectures():
        module = architecture(name)
        default = module.Config()
        learned = getattr(default, "algorithm", None)
        taken = {each.path for each in settings(learned)} if learned is not None else set()
        own = [
            each
            for each in settings(default)
            if each.path not in taken and not each.chooses and (each.path not in shared or _changed(each, shared))
        ]
        parts.append(f"## {name}\n\n{_sentence(module.__doc__)} See []({_page(name)}).")
        if learned is not None:
            links = [f"[`{each}`](settings-algorithms.md#{each})" for each in fitting_algorithms(module.Config)]
            parts.append(f"`--algorithm`: {', '.join(links)}")
        parts.append(_table(own) if own else "No settings of its own.")
    pairs = [f"| `{name}` | `{where} --algorithm {learned}` |" for name, (where, learned) in PAIRS.items()]
    parts.append("\n".join(["## Short names\n", "| name | stands for |", "|---|---|", *pairs]))
    return "\n\n".join(parts)


def _changed(each: Setting, shared: dict[str, Any]) -> bool:
    return not _depends_on_machine(each) and shared[each.path] != each.value


def _algorithms() -> str:
    """Return all settings of each algorithm, with its own defaults."""
    parts = []
    for name, value in sorted(algorithms().items()):
        page = _page(name)
        link = f"[]({page}). " if page else ""
        module = type(value).__module__.rpartition(".")[2]
        about = f"`{value.alias}` is `{module}` with other defaults. " if value.alias else ""
        parts.append(f"## {name}\n\n{link}{about}{_sentence(type(value).__doc__)}")
        parts.append(_table(list(settings(value))))
    return "\n\n".join(parts)


def _page(name: str) -> str:
    """Return the path of the page of an architecture or algorithm, relative to the reference pages."""
    return f"../{name}.md" if (DOCS / f"{name}.md").is_file() else ""


def _table(rows: Iterable[Setting]) -> str:
    lines = ["| flag | type | default | meaning |", "|---|---|---|---|"]
    for each in rows:
        about = cli_help._docstrings(type(each.owner)).get(each.name, "")
        cells = (f"`{_flag(each)}`", _kind(each), _default(each), _prose(about))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(["```{rst-class} settings\n```\n", *lines])


def _flag(each: Setting) -> str:
    outer, dot, leaf = each.path.replace("_", "-").rpartition(".")
    if each.hint is bool:
        return f"--{outer}{dot}[no-]{leaf}"
    return f"--{outer}{dot}{leaf}" + (".NAME" if _origin(each.hint) in (dict, types.MappingProxyType) else "")


def _origin(hint: Any) -> Any:
    found = typing.get_origin(hint)
    return dict if found is not None and getattr(found, "__name__", "") == "Mapping" else found


def _kind(each: Setting) -> str:
    hints = typing.get_type_hints(type(each.owner), include_extras=True)
    return _described(hints.get(each.name, each.hint))


def _described(hint: Any) -> str:
    """Describe a type in words, with its range."""
    if typing.get_origin(hint) is Annotated:
        kind, *notes = typing.get_args(hint)
        ranges = [str(note) for note in notes if isinstance(note, Bounds) and str(note)]
        return ", ".join([_described(kind), *ranges])
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{option}`" for option in options)
    if typing.get_origin(hint) in (Union, types.UnionType):
        none = len(options) < len(typing.get_args(hint))
        return _described(options[0]) + (", or `None`" if none else "")
    if typing.get_origin(hint) is tuple:
        return f"several of: {_described(options[0])}"
    if _origin(hint) is dict:
        return "any"
    return {int: "integer", float: "number", str: "text", bool: "switch", Path: "path"}.get(hint, "text")


def _default(each: Setting) -> str:
    if _depends_on_machine(each):
        return "by cores"
    shown = cli_help._default(each.value).removeprefix("(default: ").removesuffix(")")
    return "" if shown == "none" else f"`{shown}`"


def _depends_on_machine(each: Setting) -> bool:
    """Whether the default is computed from the number of cores."""
    part = type(each.owner).__dataclass_fields__[each.name]
    return isinstance(each.value, int) and part.default_factory is not dataclasses.MISSING


def _prose(text: str) -> str:
    """Convert help text to Markdown: flags and values become code, pages become links."""
    text = re.sub(r"(?<![`\w])(--[a-z][\w.-]*[\w])", r"`\1`", text)
    text = re.sub(r"\bdocs/([\w-]+)\.md", lambda found: f"[{found[1]}](../{found[1]}.md)", text)
    return _escaped(text)


def _escaped(text: str) -> str:
    """Escape Markdown, so that `<x>` and `*` outside of code are shown literally."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>*])", r"\\\1", part) for part in parts)


def _sentence(text: str | None) -> str:
    """Return the first paragraph of a docstring."""
    return _escaped(" ".join((text or "").strip().split("\n\n")[0].split()))


# -- presets ---------------------------------------------------------------------------------------


def presets() -> str:
    """Return all presets: the changed defaults for each environment, and the source of the values."""
    parts = []
    for name in architectures():
        config = architecture(name).Config
        names = fitting_algorithms(config) if hasattr(config(), "algorithm") else [None]
        found = [(learned, load_presets(name, learned)) for learned in names]
        rows = [row for learned, table in found for row in _preset_rows(learned, table)]
        if rows:
            head = ["| algorithm | environment | settings | source |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {name}\n", "```{rst-class} settings\n```\n", *head, *rows]))
    return "\n\n".join(parts)


def _preset_rows(learned: str | None, table: list[Preset]) -> Iterator[str]:
    for preset in table:
        values = "<br>".join(f"`{path} {_shown(value)}`" for path, value in _flat(preset.settings))
        where = "all" if preset.pattern == "*" else f"`{preset.pattern}`"
        cells = (f"`{learned}`" if learned else "", where, values, _escaped(" ".join(preset.source.split())))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}".replace("_", "-"), value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and value >= 10_000 else str(value)


# -- the Python API --------------------------------------------------------------------------------

GROUPS = {
    "running": ("training.train", "training.run", "training.trained", "training.resume", "_train", "core.errors"),
    "callbacks": ("training.callbacks",),
    "updates": ("algorithms.updates",),
    "algorithms": ("algorithms",),
    "configs": ("core.config", "networks.configs", "core.bounds", "core.settings"),
    "programs": ("core.program", "core.service", "core.context", "core.types", "core.edges", "architectures", "roles",
                 "exchange", "experience"),
    "networks": ("networks", "envs"),
}  # fmt: skip
"""The modules whose public names each page of the API lists."""


@functools.cache
def public_names() -> dict[str, str]:
    """Return every name of `thespis.__all__` with the module below `thespis` that defines it."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thespis"):
            below = (node.module or "").removeprefix("thespis").removeprefix(".")
            found |= {name.name: below for name in node.names if name.name in thespis.__all__}
    for name in thespis.__all__:
        if inspect.ismodule(getattr(thespis, name)):
            found[name] = getattr(thespis, name).__name__.removeprefix("thespis.")
    found |= dict.fromkeys(("train", "resume", "load"), "training.run")
    return {name: found[name] for name in thespis.__all__}


def group(name: str) -> str:
    """Return the page of the API that lists a public name."""
    module = public_names()[name]
    for page, prefixes in GROUPS.items():
        if any(f"{module}.".startswith(f"{prefix}.") or module.startswith(f"{prefix}_") for prefix in prefixes):
            return page
    raise LookupError(f"thespis.{name} comes from {module}, which is on no page of the API; add it to GROUPS")


def api(page: str = "") -> str:
    """Return the public names of one page, or a table of all names."""
    names = sorted((name for name in thespis.__all__ if not page or group(name) == page), key=str.lower)
    if not page:
        rows = [f"| [`{name}`](api-{group(name)}.md) | {_summary(name)} |" for name in names]
        return "\n".join(["| name | what it is |", "|---|---|", *rows])
    plain = [name for name in names if not inspect.ismodule(getattr(thespis, name))]
    spaces = [name for name in names if inspect.ismodule(getattr(thespis, name))]
    parts = [_documented(f"thespis.{name}", getattr(thespis, name)) for name in plain]
    for name in spaces:
        module = getattr(thespis, name)
        parts.append(f"## thespis.{name}\n\n{_sentence(module.__doc__)}")
        parts += [_documented(f"thespis.{name}.{each}", getattr(module, each)) for each in _members(module)]
    return "\n\n".join(parts)


def _members(module: types.ModuleType) -> list[str]:
    """Return the public names of a module: its `__all__`, or the classes that it defines."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    own = [name for name in own if inspect.isclass(vars(module)[name]) and not name.startswith("_")]
    return list(getattr(module, "__all__", own))


def _documented(path: str, value: object) -> str:
    if inspect.isclass(value):
        options = [] if issubclass(value, Exception) else [":members:"]
        if any(base.__module__.startswith("thespis") or base is Exception for base in value.__bases__):
            options.append(":show-inheritance:")
        return _directive("autoclass", path, options)
    if inspect.isroutine(value):
        return _directive("autofunction", path, [])
    module, _, name = path.rpartition(".")
    return f"```{{py:data}} {name}\n:module: {module}\n:no-index-entry:\n\n{_alias(path, value)}\n```"


def _directive(name: str, path: str, options: list[str]) -> str:
    return "\n".join(["```{eval-rst}", f".. {name}:: {path}", *(f"   {option}" for option in options), "```"])


def _alias(path: str, value: object) -> str:
    """Return the entry of a type such as `Fraction`: its definition, and the text below it."""
    name = path.rpartition(".")[2]
    module = importlib.import_module(f"thespis.{public_names()[name]}")
    return f"{_module_texts(module.__name__).get(name, '')}\n\nType: {_described(value)}.".strip()


@functools.cache
def _module_texts(module: str) -> dict[str, str]:
    """Return the text below each assignment of a module."""
    body = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text()).body
    found = {}
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(node.targets[0])] = " ".join(str(below.value.value).split())
    return found


def _summary(name: str) -> str:
    value = getattr(thespis, name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return _sentence(inspect.getdoc(value)).replace("|", "\\|")
    return _described(value)
