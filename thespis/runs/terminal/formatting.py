"""Formats numbers, bars and curves as short text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def algorithm_title(architecture: str, algorithm: str | None) -> str:
    """An architecture and its algorithm: `apex with r2d2`, or `dqn` if they share a name."""
    learned = (algorithm or "").rpartition("::")[2]  # a user's class, without its file
    return architecture if learned in ("", architecture) else f"{architecture} with {learned}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a curve of at most `width` characters, each the mean of an equal part of the values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    width = min(width, len(finite))
    edges = [len(finite) * i // width for i in range(width + 1)]
    means = [math.fsum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((mean - low) * scale)] for mean in means)


def bar(share: float, width: int) -> str:
    """A bar filled to `share` of `width`, to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def format_number(value: float | None) -> str:
    """At most five characters and a sign or suffix: `0.031`, `7.25`, `195.4`, `12.3k`, `4.50M`; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    if value == int(value):
        return str(int(value))
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def format_duration(seconds: float) -> str:
    """`1.4s`, `42s`, `3m 07s`, `2h 05m`, `4d 03h`."""
    whole = int(seconds)
    if 0.0 < seconds < 10.0:  # whole seconds would hide half of a short run
        return f"{min(seconds, 9.9):.1f}s"
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small:02d}{small_unit}"
    return f"{whole}s"
