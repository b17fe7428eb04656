"""The documentation site, as far as it can be checked without building it: `make docs` builds it."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT

import thespis
from thespis.algorithms import algorithms
from thespis.training.registry import PAIRS, architectures

DOCS = ROOT / "docs"
SOURCES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
LITERAL = re.compile(r'"((?:rollout|train|time|lag|replay|queue|inference|eval|es|label|population)/[a-z_]+)"')
UNREPORTED = {
    "replay/inserted",
    "replay/sampled",
    "eval/episodes",
    "eval/cut_episodes",
    "es/repeated_units",
    "es/steps_of_generations",
    "population/copies",
}
"""Counters behind `summary.json` and other metrics, which are no metrics themselves."""


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The extension that prepares the pages."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield importlib.import_module("thespis_site")
    for name in ("thespis_site", "thespis_reference", "thespis_docstrings"):
        sys.modules.pop(name, None)


@pytest.fixture
def reference(extension: ModuleType) -> ModuleType:
    return importlib.import_module("thespis_reference")


def entries(page: Path) -> list[Path]:
    """The pages in the toctrees of a page."""
    found = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), flags=re.DOTALL):
        names = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
        found += [page.parent / f"{name}.md" for name in names]
    return found


def test_every_page_is_in_one_toctree() -> None:
    listed = [entry for page in SOURCES for entry in entries(page)]
    assert sorted(listed) == sorted(set(listed))
    assert {*listed, DOCS / "index.md"} == set(SOURCES)


def test_every_architecture_and_algorithm_has_a_page() -> None:
    for name in (*architectures(), *algorithms(), *PAIRS):
        assert (DOCS / f"{name}.md").is_file(), name


def test_the_settings_name_the_repository_once() -> None:
    sys_path = list(sys.path)
    settings = runpy.run_path(str(DOCS / "conf.py"))
    sys.path[:] = sys_path
    address = settings["repository_url"]
    assert f'Repository = "{address}"' in (ROOT / "pyproject.toml").read_text()
    assert address not in (DOCS / "conf.py").read_text()
    assert all((DOCS / f"{page}.md").is_file() for page in settings["search_terms"])


def test_the_page_on_the_replay_buffer_is_found_by_its_title() -> None:
    assert (DOCS / "replay.md").read_text().startswith("# Replay buffer\n")


@pytest.mark.parametrize("path", sorted((DOCS / "_static").rglob("*")), ids=lambda path: path.name)
def test_static_files_load_nothing(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in text and "https:" not in text and "//" not in text


def test_links_to_files_lead_to_the_repository(extension: ModuleType) -> None:
    text = "[a](../thespis/cli/main.py) [docs/dqn.md](dqn.md) [b](dqn.md#metrics) ![c](images/lag.png)"
    text += "\n\n```\n[d](../x.py)\n```\n"
    shown = extension.prepare(text, "impala", DOCS, "https://host/repo")
    assert "[a](https://host/repo/blob/main/thespis/cli/main.py) [](dqn.md) [b](dqn.md#metrics)" in shown
    assert "![c](images/lag.png)" in shown and "[d](../x.py)" in shown
    shown = extension.prepare("[a](../../thespis/cli) [b](../dqn.md)", "tutorials/network", DOCS, "https://host/repo")
    assert shown == "[a](https://host/repo/tree/main/thespis/cli) [b](../dqn.md)"


def test_diagrams_are_drawn(extension: ModuleType) -> None:
    shown = extension.prepare((DOCS / "impala.md").read_text(), "impala", DOCS, "https://host/repo")
    assert "```mermaid" not in shown and "<svg" in shown
    assert "`thespis show impala --actors 4 --format svg`" in shown


def test_docstrings_become_restructured_text(extension: ModuleType) -> None:
    convert = importlib.import_module("thespis_docstrings").as_restructured_text
    lines = ["Mean of |x| * 2, see `self.x_` and `Box`es.", "", "    a --> b", "", ">>> f(*x)"]
    assert [line for line in convert(lines) if line] == [
        r"Mean of \|x\| \* 2, see ``self.x_`` and ``Box``\ es.",
        "::",
        "        a --> b",
        ">>> f(*x)",
    ]


def test_every_public_name_is_on_a_page_of_the_api(reference: ModuleType) -> None:
    for name in thespis.__all__:
        page = reference.group(name)
        assert f"<!-- generated: api {page} -->" in (DOCS / "reference" / f"api-{page}.md").read_text()


def test_every_command_is_in_the_reference(reference: ModuleType) -> None:
    modules = {path.stem for path in (ROOT / "thespis" / "cli").glob("*.py")}
    assert set(reference.command_names()) <= modules
    assert len(reference.command_names()) >= 8


def test_every_setting_is_in_the_reference(reference: ModuleType) -> None:
    text = reference.generate(["settings", "algorithms"]) + reference.generate(["settings", "shared"])
    for flag in ("--optimizer.learning-rate", "--replay.capacity", "--[no-]double", "--total-steps", "--faults"):
        assert f"`{flag}`" in text
    assert "| `--actors` | integer, at least 1 and at most 100000 | by cores |" in text


def test_every_preset_is_in_the_reference(reference: ModuleType) -> None:
    text = reference.generate(["presets"])
    assert "`--optimizer.learning-rate 0.005`" in text and "table G.1" in text


def test_every_metric_has_a_meaning() -> None:
    """Every metric that the code names in full is in a table of the page on metrics."""
    table = (DOCS / "runs.md").read_text()
    source = "\n".join(path.read_text() for path in sorted((ROOT / "thespis").rglob("*.py")))
    missing = [name for name in sorted({*LITERAL.findall(source)} - UNREPORTED) if f"`{name}`" not in table]
    assert not missing
