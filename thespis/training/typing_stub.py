"""Writes thespis/_train.pyi: `train` with the settings of each architecture, for editors and type checkers.

    python -m thespis.training.typing_stub

Run it after a change of any config. Nothing imports the stub at run time.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

from thespis.algorithms import algorithms
from thespis.algorithms.base import fitting
from thespis.core.config import Experiment
from thespis.core.config_io import updated
from thespis.core.settings import chooser, given_fields, is_config, is_inline, type_hints
from thespis.training.registry import PAIRS, architecture, architectures, trainable

STUB = Path(__file__).parents[1] / "_train.pyi"
_SHARED = "ExperimentSettings"
_COMMON = {part.name for part in dataclasses.fields(Experiment)}
_PARAMETERS = "*, callbacks: Sequence[Any] = ..., quiet: bool = ..."
_HEAD = '''\
"""Written by `python -m thespis.training.typing_stub`; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack, overload

{imports}

_Spec = str | Callable[..., Any]
'''
_DOC = '''\
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""
'''


class Field(NamedTuple):
    """A setting by its short name: its type, its value, and whether it may name a function."""

    name: str
    hint: Any
    value: Any
    names_code: bool


@dataclasses.dataclass
class Stub:
    """What the stub is made of: classes to import, and dictionaries of settings by their names."""

    imports: dict[type[Any], None] = dataclasses.field(default_factory=dict)
    dicts: dict[str, str] = dataclasses.field(default_factory=dict)
    overloads: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, fields: Iterable[Field], *bases: str) -> str:
        """A dictionary of settings, those nested in it are added too; returns its name."""
        lines = [f"    {each.name}: {self._shown(each)}" for each in fields]
        heading = f"class {name}({', '.join(bases) or 'TypedDict'}, total=False):"
        self.dicts[name] = "\n".join([heading, *(lines or ["    ..."])]) + "\n"
        return name

    def _shown(self, field: Field) -> str:
        if not is_config(field.value):
            shown = _type(field.hint)
            return re.sub(r"\bstr\b", "_Spec", shown) if field.names_code else shown
        kind = type(field.value)
        name = f"{kind.__name__.removesuffix('Config')}Settings"
        if kind not in self.imports:
            self.imports[kind] = None
            self.add(name, _fields(field.value))
        return f"{name} | {kind.__name__}"

    def add_architecture(self, name: str, cfg: Any) -> None:
        """An overload for each set of settings that its algorithms have: `a2c` has those of `vtrace`."""
        own = self.add(f"{_words(name)}Own", (each for each in _fields(cfg) if each.name not in _COMMON), _SHARED)
        if not hasattr(cfg, "algorithm"):
            self.overloads.append(_overload(f'Literal["{name}"]', own))
            return
        alike: dict[str, list[str]] = {}
        for choice in fitting(type(cfg)):
            alike.setdefault(self.add_algorithm(name, updated(cfg, {"algorithm": choice}).algorithm), []).append(choice)
        for settings, choices in alike.items():
            self.add_pair(name, own, settings, choices, required=cfg.algorithm.name not in choices)

    def add_pair(self, name: str, own: str, settings: str, choices: list[str], required: bool) -> None:
        """An overload for what is trained by this name: the architecture's `own` settings and those of algorithms."""
        shown = f"Literal[{', '.join(map(json.dumps, choices))}]"
        arguments = f"{_words(name)}{settings.removesuffix('Settings').removeprefix(_words(name))}Arguments"
        self.dicts[arguments] = (
            f"class {arguments}({own}, {settings}, total=False):\n"
            f"    algorithm: {f'Required[{shown}]' if required else shown}\n"
        )
        self.overloads.append(_overload(f'Literal["{name}"]', arguments))

    def add_algorithm(self, name: str, algorithm: Any) -> str:
        """The settings of an algorithm; a dictionary of its own where an architecture gives it others than usual."""
        usual = f"{type(algorithm).__name__}Settings"
        for candidate in (usual, f"{_words(name)}{usual}"):
            before = self.dicts.get(candidate)
            self.add(candidate, _fields(algorithm))
            if before is None or before == self.dicts[candidate]:
                return candidate
            self.dicts[candidate] = before
        raise AssertionError(f"{usual} has different settings with the same architecture {name}")


def stub() -> str:
    """The text of the stub, from the configs as they are."""
    made, configs = Stub(), {name: architecture(name).Config() for name in architectures()}
    made.add(_SHARED, _fields(Experiment()))
    for usual in algorithms().values():
        made.add_algorithm("", usual)
    for name, cfg in configs.items():
        made.add_architecture(name, cfg)
    for name, (where, choice) in PAIRS.items():
        settings = made.add_algorithm(where, updated(configs[where], {"algorithm": choice}).algorithm)
        made.add_pair(name, f"{_words(where)}Own", settings, [choice], required=False)
    by_module: dict[str, list[str]] = {"thespis.training.run": ["Trained"], "thespis.algorithms.base": ["Algorithm"]}
    for kind in made.imports:
        by_module.setdefault(kind.__module__, []).append(kind.__name__)
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
    taking = ", ".join(f'"{name}"' for name in trainable() if name in PAIRS or hasattr(configs[name], "algorithm"))
    # An algorithm of one's own has settings that are not known here.
    value = f"{_PARAMETERS}, algorithm: Algorithm[Any] | type[Algorithm[Any]], **settings: Any"
    parts = [_HEAD.format(imports="\n".join(imports)), *made.dicts.values(), *made.overloads]
    parts.append(f"@overload\ndef train(architecture: Literal[{taking}], {value}) -> Trained:\n{_DOC}")
    # Any other text: what all architectures share. So a misspelt setting of a known one is an error all the same.
    parts.append(_overload("str", _SHARED))
    parts.append(f"@overload\ndef train(architecture: Path, {_PARAMETERS}, **settings: Any) -> Trained:\n{_DOC}")
    return "\n\n".join(part.rstrip("\n") + "\n" for part in parts)


def _fields(cfg: Any) -> Iterator[Field]:
    """What may be given for a config by its short names, but for the algorithm and its settings."""
    hints = type_hints(type(cfg))
    for part in given_fields(cfg):
        value = getattr(cfg, part.name)
        if not is_inline(part):
            yield Field(part.name, hints[part.name], value, "Spec" in str(part.type))
        elif chooser(part) is None:
            yield from _fields(value)


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[-_]", name))


def _type(hint: Any) -> str:
    """What may be given for a field of this type: lists for tuples, text for paths."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(_type(option) for option in options)
    if origin is Literal:
        return f"Literal[{', '.join(repr(option) for option in options)}]".replace("'", '"')
    if origin is tuple:
        return f"list[{_type(options[0])}] | tuple[{_type(options[0])}, ...]"
    if hint is type(None):
        return "None"
    if origin is not None:
        return str(hint).replace("typing.", "").replace("collections.abc.", "")
    return "str | Path" if hint is Path else str(hint.__name__)


def _overload(literal: str, settings: str) -> str:
    parameters = f"architecture: {literal}, {_PARAMETERS}, **settings: Unpack[{settings}]"
    return f"@overload\ndef train({parameters}) -> Trained:\n{_DOC}"


if __name__ == "__main__":
    STUB.write_text(stub())
