"""What several replays handed out, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from thespis.core.types import Drawn, Inputs, Sequences

_BY_STEP = {"inputs", "actions", "returns", "discounts", "ahead", "valid", "versions"}
"""Fields of `Sequences` whose first axis is the step and whose second is the sequence."""


def joined(parts: Sequence[Drawn]) -> Drawn:
    """Items of one kind side by side, in the order of `parts`; `taken` is that of all."""
    first, *others = parts
    if not others:
        return first
    by_step = _BY_STEP if isinstance(first, Sequences) else ()
    columns: dict[str, Any] = {
        name: _beside([getattr(part, name) for part in parts], axis=1 if name in by_step else 0)
        for name in first.__slots__
        if name != "taken"
    }
    return replace(first, **columns, taken=sum(part.taken for part in parts))


def _beside(values: list[Any], axis: int) -> Any:
    """Arrays joined along `axis`, or the arrays of trees, inputs or recurrent states."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values, axis)
    if isinstance(first, dict):
        return {key: _beside([value[key] for value in values], axis) for key in first}
    if isinstance(first, Inputs):
        return Inputs(*(_beside([getattr(value, name) for value in values], axis) for name in first.__slots__))
    return tuple(_beside(list(part), axis) for part in zip(*values, strict=True))
