"""Writes thespis/_train.pyi: `train` with the settings of each architecture, for editors and type checkers.

    python -m thespis.training.typing_stub

Run it after a change to any config. Type checkers read the stub; no module imports it at run time.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union

from thespis.algorithms import fitting_algorithms
from thespis.algorithms.base import Algorithm
from thespis.core.config import Experiment
from thespis.core.config_io import with_settings
from thespis.core.settings import chooser, given_fields, is_config, is_inline, type_hints
from thespis.training.registry import PAIRS, architecture, architectures, trainable

STUB = Path(__file__).parents[1] / "_train.pyi"
_PARAMETERS = "*, callbacks: Sequence[Any] = ..., quiet: bool = ..."
_HEAD = '''\
"""Written by `python -m thespis.training.typing_stub`; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

{imports}

_Spec = str | Callable[..., Any]
'''
_DOC = '''\
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""
'''


@dataclasses.dataclass
class StubWriter:
    """Collects the parts of the stub: imported classes, dictionaries of settings by name, and overloads of `train`.

    Every config class has one dictionary. It extends that of the class's base; an inline config is a further base of
    the arguments.
    """

    imports: dict[type[Any], None] = dataclasses.field(default_factory=dict)
    dicts: dict[str, str] = dataclasses.field(default_factory=dict)
    overloads: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, lines: Iterable[str], *bases: str) -> str:
        """Add a dictionary with the fields `lines`; return its name, or that of its only base if it adds no field."""
        body = "".join(f"\n    {line}" for line in lines)
        if not body and len(bases) == 1:
            return bases[0]
        text = f"class {name}({', '.join(bases) or 'TypedDict'}, total=False):{body or ' ...'}\n"
        assert self.dicts.setdefault(name, text) == text, f"two config classes have the dictionary {name}"
        return name

    def add_config(self, cfg: Any, name: str = "") -> list[str]:
        """Add the settings of a config; return the names of its dictionary and of those of its inline configs."""
        kind, parts = type(cfg), given_fields(cfg)
        hints = type_hints(kind)
        lines = []
        for part in parts:
            if not is_inline(part):
                shown = self._shown(hints[part.name], getattr(cfg, part.name), names_code="Spec" in str(part.type))
                lines.append(f"{part.name}: {shown}")
        configs = [base for base in kind.__bases__ if dataclasses.is_dataclass(base) and base is not Algorithm]
        bases = [name for base in configs for name in self.add_config(base())]
        lines = [line for line in lines if not any(f"    {line}\n" in self.dicts[each] for each in bases)]
        found = [self.add(name or _dict_name(kind), lines, *bases)] if lines or bases else []
        for part in parts:
            if is_inline(part) and chooser(part) is None:
                found += self.add_config(getattr(cfg, part.name))
        return found

    def _shown(self, hint: Any, value: Any, names_code: bool) -> str:
        """Return the type of a setting. `names_code`: it may name a function, so a function is valid, too."""
        if is_config(value):
            self.imports[type(value)] = None
            (name,) = self.add_config(value)
            return f"{name} | {type(value).__name__}"
        shown = _type(hint)
        return re.sub(r"\bstr\b", "_Spec", shown) if names_code else shown

    def add_architecture(self, name: str, cfg: Any) -> None:
        """Add one overload per distinct set of algorithm settings; `a2c` and `vtrace` share one."""
        if not hasattr(cfg, "algorithm"):
            (settings,) = self.add_config(cfg, f"{_words(name)}Own")
            self.overloads.append(_overload(f'Literal["{name}"]', settings))
            return
        alike: dict[str, list[str]] = {}
        for choice in fitting_algorithms(type(cfg)):
            alike.setdefault(self.add_pair(name, cfg, choice), []).append(choice)
        for settings, choices in alike.items():
            self.add_overload(name, settings, choices, required=cfg.algorithm.name not in choices)

    def add_pair(self, name: str, cfg: Any, choice: str) -> str:
        """Add the settings of an architecture with the algorithm `choice`; return the name of their dictionary."""
        algorithm = with_settings(cfg, {"algorithm": choice}).algorithm
        settings = [*self.add_config(cfg, f"{_words(name)}Own"), *self.add_config(algorithm)]
        return self.add(f"{_words(name)}{type(algorithm).__name__}", (), *settings)

    def add_overload(self, name: str, settings: str, choices: list[str], required: bool) -> None:
        """Add an overload for the algorithms `choices`, all with the same `settings`."""
        algorithm = f"algorithm: Literal[{', '.join(map(json.dumps, choices))}]{'' if required else ' = ...'}"
        self.overloads.append(_overload(f'Literal["{name}"]', settings, f", {algorithm}"))


def stub() -> str:
    """Return the text of the stub for the current configs."""
    made, configs = StubWriter(), {name: architecture(name).Config() for name in architectures()}
    for name, cfg in configs.items():
        made.add_architecture(name, cfg)
    for name, (where, choice) in PAIRS.items():
        made.add_overload(name, made.add_pair(where, configs[where], choice), [choice], required=False)
    by_module: dict[str, list[str]] = {
        "thespis.training.trained_run": ["TrainedRun"],
        "thespis.algorithms.base": ["Algorithm"],
    }
    for kind in made.imports:
        by_module.setdefault(kind.__module__, []).append(kind.__name__)
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
    taking = ", ".join(f'"{name}"' for name in trainable() if name in PAIRS or hasattr(configs[name], "algorithm"))
    # The settings of a custom algorithm are unknown here.
    value = f"{_PARAMETERS}, algorithm: Algorithm[Any] | type[Algorithm[Any]], **settings: Any"
    parts = [_HEAD.format(imports="\n".join(imports)), *made.dicts.values(), *made.overloads]
    parts.append(f"@overload\ndef train(architecture: Literal[{taking}], {value}) -> TrainedRun:\n{_DOC}")
    # Other strings accept the common settings only, so a misspelt setting of a known architecture is an error.
    parts.append(_overload("str", _dict_name(Experiment)))
    parts.append(f"@overload\ndef train(architecture: Path, {_PARAMETERS}, **settings: Any) -> TrainedRun:\n{_DOC}")
    return "\n\n".join(part.rstrip("\n") + "\n" for part in parts)


def _dict_name(kind: type[Any]) -> str:
    return f"{kind.__name__.removesuffix('Config')}Settings"


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[-_]", name))


def _type(hint: Any) -> str:
    """Return the accepted type of a field; lists are valid for tuples, and strings for paths."""
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


def _overload(literal: str, settings: str, algorithm: str = "") -> str:
    parameters = f"architecture: {literal}, {_PARAMETERS}{algorithm}, **settings: Unpack[{settings}]"
    return f"@overload\ndef train({parameters}) -> TrainedRun:\n{_DOC}"


if __name__ == "__main__":
    STUB.write_text(stub())
