"""The names of `thespis.__all__` exist, have docstrings, import lazily, and suffice for the examples."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import thespis
from thespis.algorithms import algorithms

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHARED = {"gymnasium", "numpy", "optuna", "pandas", "torch"}
"""Packages beside Thespis that an example may import."""
ALIASES = {"Count", "CountOrZero", "Fraction", "NonNegative", "Positive"}
"""Annotated numbers; a type alias has no docstring of its own."""


def imports(nodes: list[ast.stmt]) -> set[tuple[str, str]]:
    """Return module and name of all imports; the name is empty for a whole module."""
    found: set[tuple[str, str]] = set()
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import):
                found |= {(alias.name, "") for alias in inner.names}
            elif isinstance(inner, ast.ImportFrom):
                found |= {(inner.module or "", alias.name) for alias in inner.names}
    return found


@pytest.mark.parametrize("name", thespis.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(thespis, name)
    if name not in ALIASES:
        said = inspect.getdoc(value) or ""
        assert said and not said.startswith(f"{name}("), f"{name} needs a docstring of its own"


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = thespis.nothing
    assert set(thespis.__all__) <= set(dir(thespis))


def test_every_algorithm_is_public() -> None:
    missing = {type(each).__name__ for each in algorithms().values()} - set(thespis.__all__)
    assert not missing, "add these to thespis/__init__.py: an import, a name in __all__, and a line of _NAMES"


def test_type_checkers_see_the_same_names() -> None:
    """The imports for type checkers are those of `__getattr__`, from the same modules."""
    module = ast.parse(Path(thespis.__file__).read_text())
    (block,) = [node for node in module.body if isinstance(node, ast.If)]
    seen = {(where, name) for where, name in imports(block.body) if where.startswith("thespis.")}
    seen -= {("thespis.core", name) for name in thespis._NAMESPACES}
    lazy = {(f"thespis.{where}", name) for where, names in thespis._NAMES.items() for name in names.split()}
    assert seen - {("thespis._train", "train")} == lazy - {("thespis.training.train", "train")}
    assert sorted(thespis.__all__) == sorted({name for _, name in lazy} | thespis._NAMESPACES.keys())


def test_importing_thespis_loads_neither_torch_nor_gymnasium() -> None:
    code = "import sys, thespis; thespis.Algorithm, thespis.Program, thespis.chosen; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"torch", "gymnasium"} & set(done.stdout.split())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_only_what_is_public(path: Path) -> None:
    for where, name in imports(ast.parse(path.read_text()).body):
        top = where.partition(".")[0]
        if top == "thespis":
            assert where == "thespis" and name in thespis.__all__, f"{path.name} imports {name} from {where}"
        else:
            assert top in SHARED or top in sys.stdlib_module_names, f"{path.name} imports {where}"
