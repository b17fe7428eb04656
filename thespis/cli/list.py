"""`thespis list`: the architectures there are."""

from __future__ import annotations

from thespis.launch import architecture, architectures


def run(words: list[str]) -> int:
    if words:
        print("usage: thespis list\n\nThe architectures there are, with the first line of each.")
        return 0 if words[0] in ("-h", "--help") else 2
    for name in architectures():
        summary = (architecture(name).__doc__ or "").strip().splitlines()[0]
        print(f"{name:18} {summary}")
    return 0
