"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import STALE

TESTS = Path(__file__).resolve().parents[1]


def imported(path: Path) -> set[str]:
    """The last parts of the names of all modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {alias.name for alias in node.names}
    return {name.rpartition(".")[2] for name in found}


def test_nobody_imports_a_test_module() -> None:
    """Helpers that several modules share stand in modules without tests."""
    modules = {path.stem for path in TESTS.rglob("test_*.py")}
    importers = {path.name: imported(path) & modules for path in TESTS.rglob("*.py")}
    assert not {name: found for name, found in importers.items() if found}


def test_every_line_of_slow_txt_names_a_test(request: pytest.FixtureRequest) -> None:
    assert not request.config.stash[STALE], "remove these lines of tests/slow.txt, or correct them"
