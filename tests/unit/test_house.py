"""Rules for the tests themselves, and for names and docstrings of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import STALE

TESTS = Path(__file__).resolve().parents[1]


def imports(path: Path) -> set[str]:
    """Return all modules that a file imports, and what it imports from them, as `module.name`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def test_no_module_imports_a_test_module() -> None:
    """Helpers that several modules share are in modules without tests."""
    modules = {path.stem for path in TESTS.rglob("test_*.py")}
    importers = {
        path.name: {name.rpartition(".")[2] for name in imports(path)} & modules for path in TESTS.rglob("*.py")
    }
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


VOCABULARY = {
    "thespis.algorithms",
    "thespis.algorithms.base",
    "thespis.architectures",
    "thespis.core.bounds",
    "thespis.core.edges",
    "thespis.core.errors",
    "thespis.core.program",
    "thespis.core.settings",
    "thespis.envs.spaces",
}
"""Modules with the words of all architectures: programs, edges, settings and their bounds, algorithms, spaces."""


def thespis_modules(path: Path) -> set[str]:
    """Return the modules of Thespis that a file imports, also those it takes as `from package import module`."""
    files = {name: PACKAGE.parent.joinpath(*name.split(".")) for name in imports(path) if name.startswith("thespis.")}
    return {name for name, file in files.items() if file.with_suffix(".py").exists() or file.is_dir()}


@pytest.mark.parametrize(
    ("architecture", "algorithm"), [("impala", "vtrace"), ("apex", "dqn"), ("seed", "vtrace"), ("ppo", "ppo")]
)
def test_an_architecture_needs_four_other_files(architecture: str, algorithm: str) -> None:
    """They say what every setting means and what every role does: a role's `add_*` function stands in `builders`."""
    path = PACKAGE / "architectures" / f"{architecture}.py"
    assert thespis_modules(path) - VOCABULARY == {
        f"thespis.algorithms.{algorithm}",
        "thespis.architectures.builders",
        "thespis.core.config",
        "thespis.core.learners_config",
    }
