"""Converts docstrings of Thespis to reStructuredText, which autodoc parses.

Docstrings are plain text with `code` in backticks, indented examples and lists. Characters that mean something else in
reStructuredText are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_CODE = re.compile(r"(`+)([^`]+)\1")
_SPECIAL = re.compile(r"([\\*|])|(_)(?=\W|$)")


def as_restructured_text(lines: Iterable[str]) -> list[str]:
    """Return the lines of a docstring, escaped."""
    return [line for block in _blocks(lines) for line in (*_block(block), "")]


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _block(lines: list[str]) -> Iterator[str]:
    if lines[0].lstrip().startswith(">>>"):
        yield from lines
    elif all(line.startswith(" ") for line in lines):
        yield from ("::", "", *(f"    {line}" for line in lines))
    else:
        yield from escaped("\n".join(lines)).split("\n")


def escaped(text: str) -> str:
    """Return prose with code in double backticks and escaped special characters."""
    parts, start = [], 0
    for code in _CODE.finditer(text):
        parts += [_SPECIAL.sub(r"\\\1\2", text[start : code.start()]), f"``{code[2]}``"]
        start = code.end()
        if text[start : start + 1].isalnum():
            parts.append("\\ ")  # a plural such as `Box`es
    return "".join([*parts, _SPECIAL.sub(r"\\\1\2", text[start:])])
