"""The graph of every architecture is the stored one, and its page in docs shows it."""

from __future__ import annotations

import pytest
from graphs import DIAGRAM, page, stored, text, with_diagrams

from thespis.training.registry import architectures

REDO = "`python tests/graphs.py` writes it anew"


@pytest.mark.parametrize("name", architectures())
def test_the_graph_is_the_stored_one(name: str) -> None:
    assert text(name) == stored(name).read_text(), REDO


@pytest.mark.parametrize("name", architectures())
def test_the_diagram_in_docs_is_the_program_s(name: str) -> None:
    markdown = page(name).read_text()
    drawn = [command.split()[1] for command, _ in DIAGRAM.findall(markdown)]
    assert name in drawn, f"{page(name)} must show what `thespis show {name} --format mermaid` draws"
    assert markdown.count("```mermaid") == len(drawn), "a `thespis show` command must stand above each diagram"
    assert with_diagrams(markdown) == markdown, REDO


def test_every_stored_graph_is_of_an_architecture() -> None:
    assert {path.stem for path in stored("any").parent.glob("*.txt")} == set(architectures())
