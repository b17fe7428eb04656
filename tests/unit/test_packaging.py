"""What a wheel holds beside Python files."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_data_file_of_the_package_is_part_of_the_wheel() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["thespis"]
    files = [
        str(path.relative_to(ROOT / "thespis"))
        for path in (ROOT / "thespis").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert len([name for name in files if name.endswith(".yaml")]) >= 13
    assert not [name for name in files if not any(fnmatch(name, pattern) for pattern in data)]
