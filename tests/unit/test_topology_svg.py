"""The SVG drawing of a program: it contains the whole graph, and nothing covers a label."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import pytest

from thespis.cli.main import main
from thespis.core.program import Program
from thespis.core.service import Method, RoleDescription
from thespis.report.topology_svg import topology_svg
from thespis.training.registry import architecture, architectures, defaults

WIDTH = 6.6
"""Width of a character of 12 pixels, generously."""


class Area(NamedTuple):
    """A rectangle of the drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Area) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Pool:
    """A service that is also called by a role of the same name."""

    description = RoleDescription(methods={"swap": Method("gradients", takes="gradients", gives="weights")})


class Alone:
    """A role without edges."""


def build_pool(ctx: object, swap: object = None) -> Pool:
    return Pool()


def build_alone(ctx: object) -> Alone:
    return Alone()


def program(name: str) -> Program:
    module = architecture(name)
    count = {"slots": 4} if name == "pbt" else {"actors": 4}
    made: Program = module.program(defaults(name, None, count))
    return made


def root(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace(' xmlns="http://www.w3.org/2000/svg"', ""))


def written(drawing: ElementTree.Element) -> dict[str, list[Area]]:
    """Return the areas of texts and boxes, by class."""
    areas: dict[str, list[Area]] = {}
    for text in drawing.iter("text"):
        size = 14 if text.get("class") == "name" else 12
        width = len(text.text or "") * WIDTH * size / 12
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        left = x - width / 2 if text.get("text-anchor") == "middle" else x
        areas.setdefault(text.get("class", "legend"), []).append(Area(left, y - size * 0.8, left + width, y + 3))
    for box in drawing.iter("rect"):
        x, y, width, height = (float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
        areas.setdefault(box.get("class", ""), []).append(Area(x, y, x + width, y + height))
    return areas


@pytest.mark.parametrize("name", architectures())
def test_every_role_and_edge_is_drawn(name: str) -> None:
    made = program(name)
    svg = topology_svg(made)
    texts = [text.text for text in root(svg).iter("text")]
    for role in {spec.role for spec in made.roles}:
        assert any(re.fullmatch(rf"{role}( ×\d+)?", text or "") for text in texts), role
    labels = [text.text or "" for text in root(svg).iter("text") if text.get("class") == "label"]
    assert len(labels) == len(made.arrows())
    for arrow in made.arrows():
        assert any(arrow.method in label for label in labels)


@pytest.mark.parametrize("name", architectures())
def test_labels_cover_neither_each_other_nor_boxes(name: str) -> None:
    drawing = root(topology_svg(program(name)))
    areas = written(drawing)
    texts = [*areas["label"], *areas.get("process", []), *areas["legend"]]
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)
    for text, box in itertools.product(texts, areas["box"]):
        assert not text.overlaps(box)
    width, height = float(drawing.get("width", 0)), float(drawing.get("height", 0))
    for area in itertools.chain(*areas.values()):
        assert area.left >= 0 and area.top >= 0 and area.right <= width and area.bottom <= height


@pytest.mark.parametrize("name", architectures())
def test_edges_in_a_gap_pass_no_label_of_another(name: str) -> None:
    """The horizontal part of an edge is below its own label only."""
    drawing = root(topology_svg(program(name)))
    labels = written(drawing)["label"]
    for path in drawing.iter("path"):
        found = re.search(r"C\S+ \S+ \S+ \S+ (\d+) (\d+)H(\d+)C", path.get("d", ""))
        if path.get("class") == "edge" and found:
            left, y, right = map(float, found.groups())
            assert sum(label.overlaps(Area(left, y - 1, right, y + 1)) for label in labels) == 0


def test_processes_that_are_alike_are_one_frame() -> None:
    texts = [text.text for text in root(topology_svg(program("gorila"))).iter("text")]
    assert any(re.fullmatch(r"process bundle ×4", text or "") for text in texts)


def test_a_role_may_call_others_of_its_name_or_none() -> None:
    made = Program("ring")
    first = made.at().add("pool", build_pool)
    made.at().add("pool", build_pool, swap=first.edge("swap"))
    made.at().add("alone", build_alone)
    areas = written(root(topology_svg(made)))
    assert len(areas["label"]) == 1 and len(areas["box"]) == 2
    assert not any(areas["label"][0].overlaps(box) for box in areas["box"])


def test_kinds_of_edge_differ_by_more_than_colour() -> None:
    svg = topology_svg(program("qtopt"))
    shown = dict(re.findall(r'stroke="var\(--topology-(\w+)\)"(?: stroke-dasharray="([^"]*)")?', svg))
    assert len(shown) > 1 and len(set(shown.values())) == len(shown)


def test_the_command_prints_the_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "impala", "--actors", "3", "--format", "svg"]) == 0
    printed = capsys.readouterr().out
    assert root(printed).tag == "svg" and "actor ×3" in printed
    assert "http" not in printed.replace("http://www.w3.org/2000/svg", "")


def test_names_are_escaped() -> None:
    made = Program("<b>&")
    made.at().add("alone", build_alone)
    assert root(topology_svg(made)).findtext("title") == "Roles and edges of <b>&"
