"""A measured figure has one home page. Another page that states it has the same number, perhaps rounded.

`facts` makes a line of each cell of a table, `title > heading > paragraph above | cells to its left | column = value`,
and one of each sentence, `title > heading: sentence`. A quantity is a pattern over such lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*DOCS.glob("*.md"), *DOCS.glob("[!_]*/*.md")})]
NUMBER = r"(?<![\d.,])(\d[\d,.]*\d|\d)( ?k\b| ?M\b| million)?"
UNITS = {"k": 1e3, "M": 1e6, "million": 1e6}
SPEED = rf"(?:.*\| steps/s = {NUMBER}$|[^|]*?{NUMBER}(?: to {NUMBER})? (?:steps/s|steps per second|steps a second))"
"""In a cell, or in a sentence."""


@dataclass(frozen=True)
class Quantity:
    """`home` finds its values on its page. A fact elsewhere that `elsewhere` finds must have one of these values."""

    name: str
    page: str
    home: str
    elsewhere: str


IMPALA = r"(?=IMPALA >|.*\| [^|]*\bimpala\b|[^|]*: [^|]*\bimpala\b)"
"""Starts a fact about IMPALA: on its page, in its row, or in a sentence that names it."""
OTHER = r"(?!.*(?:virtual|1,024|sleep|ideal|roofline|limit|as fast as))"
"""Excludes facts about other settings."""
PEERS = ("Sample Factory", "RLlib", "Stable-Baselines3", "CleanRL")
QUANTITIES = [
    Quantity(
        "IMPALA's speed on CartPole",
        "benchmarks.md",
        rf"Thespis IMPALA; defaults \| CartPole steps/s = {NUMBER}",
        rf"^(?=.*CartPole)(?!.*Pong){OTHER}{IMPALA}{SPEED}",
    ),
    Quantity(
        "IMPALA's speed with 1,024 environments",
        "benchmarks.md",
        rf"Thespis IMPALA; 1,024 environments \| CartPole steps/s = {NUMBER}",
        rf"1,024 environments[^.]*? {NUMBER} (?:steps/s|steps per second)",
    ),
    Quantity(
        "IMPALA's speed on Pong",
        "benchmarks.md",
        rf"Thespis IMPALA; defaults;.*\| Pong steps/s = {NUMBER}",
        rf"^(?=.*Pong){OTHER}{IMPALA}{SPEED}",
    ),
    Quantity(
        "PPO's speed on CartPole",
        "benchmarks.md",
        rf"Thespis PPO; defaults \| CartPole steps/s = {NUMBER}",
        rf"^(?=.*CartPole)(?=PPO >|.*\| [^|]*\bppo\b){OTHER}{SPEED}",
    ),
    Quantity(
        "IMPALA's seconds to 475",
        "benchmarks.md",
        rf"Thespis IMPALA; defaults;.*\| seconds to 475 = {NUMBER}",
        rf"^{IMPALA}.*\| (?:seconds to 475|s to 475|seconds after start-up) = {NUMBER}$",
    ),
    Quantity(
        "IMPALA's steps to 475",
        "impala.md",
        rf"^IMPALA >.*\| steps to 475 = {NUMBER}",
        rf"^(?=.*CartPole){IMPALA}.*(?:\| steps to 475 = {NUMBER}$|475 after {NUMBER})",
    ),
    Quantity(
        "the part of IMPALA's limit that it reaches",
        "impala.md",
        rf"CartPole-v1.*\| real run / limit.* = {NUMBER}",
        rf"^{IMPALA}.*{NUMBER} of (?:its|the) (?:limit|roofline)",
    ),
    Quantity(
        "the part of the ideal that 64 actors reach",
        "scale.md",
        rf"> impala .*\| 64; 6,400; [\d,]+ \| of ideal = {NUMBER}",
        rf"{NUMBER} of the ideal (?:speed )?with 64",
    ),
    Quantity(
        "Ray's speed beside local processes",
        "cluster.md",
        rf"{NUMBER} times the steps per second of the local runtime",
        rf"\bRay\b.*? {NUMBER} (?:times|of) (?:the steps|the speed|local)",
    ),
    *(
        Quantity(
            f"the speed of {name} beside IMPALA",
            "choosing.md",
            rf"\| {name}; [^|]*\| steps/s, IMPALA = 1 = {NUMBER}",
            rf"\| `?{name}`?(?:;[^|]*)? \| (?:steps/s, )?(?:of IMPALA|IMPALA = 1) = {NUMBER}",
        )
        for name in ("a3c", "a2c", "gorila", "apex")
    ),
    *(
        Quantity(
            f"how much faster than {peer}",
            "benchmarks.md",
            rf"\| (?:PPO as )?{peer}[^|]*\| ours is = {NUMBER}×",
            rf"{NUMBER} (?:×|times) (?:as fast as |the (?:speed|steps per second) of )?{peer}",
        )
        for peer in PEERS
    ),
]


def facts(text: str) -> Iterator[str]:
    """Return the cells and sentences of a page, each with its position."""
    title = heading = paragraph = ""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("**", "")
    for block in re.split(r"\n\s*\n|\n(?=#)|(?<=\|)\n(?!\|)", text):
        lines = block.strip().splitlines()
        if not lines:
            continue
        if lines[0].startswith("#"):
            level, _, name = lines.pop(0).partition(" ")
            title, heading = (name, "") if level == "#" else (title, name)
        if lines and lines[0].lstrip().startswith("|"):
            yield from _cells(lines, f"{title} > {heading} > {paragraph}")
        elif lines:
            paragraph = " ".join(line.strip() for line in lines)
            yield from (f"{title} > {heading}: {each}" for each in re.split(r"(?<=[.!?:;])\s+(?=[A-Z*`\[])", paragraph))


def _cells(lines: list[str], where: str) -> Iterator[str]:
    header, *rows = [[cell.strip() for cell in line.strip()[1:].rstrip("|").split("|")] for line in lines]
    for row in rows:
        for place in range(1, min(len(row), len(header))):
            yield f"{where} | {'; '.join(row[:place])} | {header[place]} = {row[place]}"


def values(pattern: str, text: str) -> list[tuple[str, str]]:
    """Yield each fact that the pattern finds, with each of its numbers."""
    found = [(fact, match) for fact in facts(text) if (match := re.search(pattern, fact, flags=re.IGNORECASE))]
    return [
        (fact, number + unit)
        for fact, match in found
        for number, unit in zip(match.groups("")[::2], match.groups("")[1::2], strict=True)
        if number
    ]


def same(stated: str, home: str) -> bool:
    """Whether `stated` equals the home page's number, rounded to the digits of `stated`."""
    return abs(_value(stated) - _value(home)) <= 0.5 * _digit(stated) * (1 + 1e-9)


def _value(stated: str) -> float:
    number, unit = _split(stated)
    return float(number) * UNITS.get(unit, 1.0)


def _digit(stated: str) -> float:
    """Return the value of the last digit of a number; zeros at the end of an integer count as rounded."""
    number, unit = _split(stated)
    whole, _, fraction = number.partition(".")
    digit = 10.0 ** -len(fraction) if fraction else 10.0 ** (len(whole) - len(whole.rstrip("0") or "0"))
    return digit * UNITS.get(unit, 1.0)


def _split(stated: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\d,.]+) ?(\w*)", stated)
    assert match, stated
    return match[1].replace(",", ""), match[2]


@cache
def text_of(page: Path) -> str:
    return page.read_text()


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
def test_a_figure_is_the_same_on_every_page(quantity: Quantity) -> None:
    home = ROOT / "docs" / quantity.page
    known = [number for _, number in values(quantity.home, text_of(home))]
    assert known, f"{quantity.page} is the home of {quantity.name}, but does not state it"
    wrong = [
        f"{page.relative_to(ROOT)} has {number}: {fact}"
        for page in PAGES
        if page != home
        for fact, number in values(quantity.elsewhere, text_of(page))
        if not any(same(number, each) for each in known)
    ]
    assert not wrong, f"{quantity.name} is {', '.join(known)} on {quantity.page}; link there, or give the same:\n" + (
        "\n".join(wrong)
    )


def test_the_picture_of_the_benchmarks_has_the_numbers_of_their_table() -> None:
    """`python docs/make_figures.py peers` draws the picture from the table."""
    svg = text_of(ROOT / "docs" / "images" / "peers.svg")
    shown = {text for text in re.findall(r">\s*([^<>]+?)\s*</text>", svg) if text[0].isdigit()}
    table = {cell.strip() for cell in text_of(ROOT / "docs" / "benchmarks.md").split("|")}
    assert len(shown) >= 12 and shown <= table


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("IMPALA makes 426,669 steps/s on CartPole-v1.", False),
        ("IMPALA takes about 427,000 steps per second on CartPole-v1.", False),
        ("On CartPole-v1 IMPALA makes 382k steps/s.", True),
        ("On CartPole-v1, IMPALA on local processes makes 181,000 to 200,000 steps/s.", True),
        ("| | steps/s |\n|---|---|\n| `impala` | 119,500 |", True),
        ("| | steps/s, of IMPALA |\n|---|---|\n| `impala` | 1.00 |", False),
    ],
)
def test_a_sentence_with_another_number_is_found(sentence: str, wrong: bool) -> None:
    page = f"# Another page\n\n## CartPole-v1\n\n{sentence}\n"
    home = "426,669"
    found = [number for _, number in values(QUANTITIES[0].elsewhere, page)]
    assert any(not same(number, home) for number in found) == wrong
    assert wrong or not found or all(same(number, home) for number in found)
