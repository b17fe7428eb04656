"""Rules for the tests themselves, and for names and docstrings of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import STALE

TESTS = Path(__file__).resolve().parents[1]


def imported(path: Path) -> set[str]:
    """Return the last parts of the names of all modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {alias.name for alias in node.names}
    return {name.rpartition(".")[2] for name in found}


def test_no_module_imports_a_test_module() -> None:
    """Helpers that several modules share are in modules without tests."""
    modules = {path.stem for path in TESTS.rglob("test_*.py")}
    importers = {path.name: imported(path) & modules for path in TESTS.rglob("*.py")}
    assert not {name: found for name, found in importers.items() if found}


def test_every_line_of_slow_txt_names_a_test(request: pytest.FixtureRequest) -> None:
    assert not request.config.stash[STALE], "remove these lines of tests/slow.txt, or correct them"


PACKAGE = TESTS.parent / "thespis"
REPEATED = {"Config", "program", "validate", "run"}
"""Names that many modules define by design: every architecture has the first three, every command has `run`."""


def defined(path: Path) -> set[str]:
    """Return the public names that a module defines: classes, functions, constants and aliases."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_every_public_name_is_defined_in_one_module() -> None:
    """`build_*` functions wire the roles of an architecture, so architectures may share their names."""
    modules: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in defined(path):
            modules.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    repeated = {name: where for name, where in modules.items() if len(where) > 1 and name not in REPEATED}
    assert not {name: where for name, where in repeated.items() if not name.startswith("build_")}


def test_everything_public_has_a_docstring() -> None:
    """Modules, public classes and functions, and methods of public classes have docstrings."""
    missing: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text())
        nodes: list[ast.AST] = [module] if module.body else []
        for node in module.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                nodes.append(node)
                methods = node.body if isinstance(node, ast.ClassDef) else []
                nodes += [m for m in methods if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in nodes:
            name = getattr(node, "name", "module")
            decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
            if name[0] != "_" and "overload" not in decorators and not ast.get_docstring(node):  # type: ignore[arg-type]
                missing.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert not missing
