"""The graph of every architecture is the stored one, and its page in docs shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import drawn, page, pages, stored, text, with_diagrams

from thespis.training.registry import PAIRS, architectures

REDO = "run `python tests/graphs.py` to update it"


@pytest.mark.parametrize("name", architectures())
def test_the_graph_is_the_stored_one(name: str) -> None:
    assert text(name) == stored(name).read_text(), REDO


@pytest.mark.parametrize(("name", "where"), [(name, where) for name, (where, _) in PAIRS.items()])
def test_the_graph_of_a_pair_is_that_of_its_architecture(name: str, where: str) -> None:
    assert text(name) == stored(where).read_text()


@pytest.mark.parametrize("name", [*architectures(), "apex-dpg", "r2d2"])
def test_the_page_of_an_architecture_shows_its_graph(name: str) -> None:
    assert name in drawn(page(name).read_text()), f"{page(name)} must show `thespis show {name} --format mermaid`"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_the_diagrams_in_docs_are_the_programs(path: Path) -> None:
    markdown = path.read_text()
    shown = len(drawn(markdown))
    assert markdown.count("```mermaid") == shown, "a `thespis show` command must stand above each diagram"
    assert with_diagrams(markdown) == markdown, REDO


def test_every_stored_graph_is_of_an_architecture() -> None:
    assert {path.stem for path in stored("any").parent.glob("*.txt")} == set(architectures())
