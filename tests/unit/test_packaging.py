"""The distribution: its data files, its description, its version, and the commands that build and check it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from constraints import oldest

import thespis

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.org/someone/thespis"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """Import setup.py without building anything."""
    spec = importlib.util.spec_from_file_location("thespis_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_data_file_of_the_package_is_part_of_the_wheel() -> None:
    data = pyproject()["tool"]["setuptools"]["package-data"]["thespis"]
    files = [
        str(path.relative_to(ROOT / "thespis"))
        for path in (ROOT / "thespis").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert {"py.typed", "_train.pyi"} <= set(files)
    assert len([name for name in files if fnmatch(name, "architectures/presets/*.yaml")]) >= 13
    assert not [name for name in files if not any(fnmatch(name, pattern) for pattern in data)]


@pytest.mark.parametrize(
    ("relative", "absolute"),
    [
        ("![panel](docs/images/panel.svg)", f"![panel]({REPOSITORY}/raw/HEAD/docs/images/panel.svg)"),
        ("[DQN](docs/dqn.md#results)", f"[DQN]({REPOSITORY}/blob/HEAD/docs/dqn.md#results)"),
        ("[![a](b.png)](docs/c.md)", f"[![a]({REPOSITORY}/raw/HEAD/b.png)]({REPOSITORY}/blob/HEAD/docs/c.md)"),
        ('<img src="docs/a.svg" width="9">', f'<img src="{REPOSITORY}/raw/HEAD/docs/a.svg" width="9">'),
        ("[Ray](https://docs.ray.io), [here](#install)", "[Ray](https://docs.ray.io), [here](#install)"),
        ("```python\ncalls[0](docs/x)\n```\n", "```python\ncalls[0](docs/x)\n```\n"),
    ],
)
def test_links_of_the_description_are_absolute(setup: ModuleType, relative: str, absolute: str) -> None:
    assert setup.absolute_links(relative, REPOSITORY) == absolute


def test_readme_has_no_relative_target_left(setup: ModuleType) -> None:
    described = setup.long_description()
    prose = re.sub(r"^```.*?^```$", "", described, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r'\]\(([^)\s]+)|\b(?:src|href|srcset)="([^"]+)"', prose)
    assert targets
    assert not [each for pair in targets for each in pair if each and not each.startswith(("https://", "#"))]
    assert f"{pyproject()['project']['urls']['Repository']}/raw/HEAD/docs/" in described


def test_changelog_and_citation_have_the_version() -> None:
    releases = re.findall(r"^## \[(\d[^]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], str(citation["date-released"])) == releases[0]
    assert citation["version"] == thespis.__version__


def test_users_dependencies_have_lower_bounds() -> None:
    project = pyproject()["project"]
    pinned = {pin.partition("==")[0] for pin in oldest(project)}
    assert {re.split(r"[\[>]", requirement)[0] for requirement in project["dependencies"]} <= pinned


def made(workflow: Path) -> set[str]:
    """Return the make targets that a workflow uses."""
    found: set[str] = set()
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        targets = [*matrix.get("target", ()), *(each["target"] for each in matrix.get("include", ()))]
        runs = [step["run"] for step in job["steps"] if step.get("run", "").startswith("make ")]
        found |= {name for run in runs for name in (targets if "matrix" in run else run.split()[1:])}
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_make_targets_of_the_makefile(workflow: Path) -> None:
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    targets = made(workflow)
    assert targets and targets <= {name for rule in rules for name in rule.split()}
