"""Parses integers as people write them: 1000000, 1_000_000, 1e6, 100k, 5M, 2.5M."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9}
_FORM = re.compile(r"([+-]?\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)([kmbg]?)", re.IGNORECASE)


def parse_int(text: str) -> int:
    """Return the integer that `text` denotes; raise `ValueError` with a reason if it denotes none."""
    match = _FORM.fullmatch(text.strip())
    if match is None or len(text) > 200:
        raise ValueError(f"{text[:40]!r} is not a whole number, such as 1000000, 1e6, 100k or 5M")
    number = Decimal(match[1].replace("_", "")).scaleb(_UNITS[match[2].lower()])
    if number != number.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)
