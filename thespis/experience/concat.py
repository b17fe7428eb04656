"""Concatenates samples of several replays into one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from thespis.core.types import Inputs, ReplaySample, SequenceBatch

_BY_STEP = {"inputs", "actions", "rewards", "discounts", "ahead", "valid", "versions"}
"""Fields of `SequenceBatch` with axes [step, sequence]."""


def concat_batches(parts: Sequence[ReplaySample]) -> ReplaySample:
    """Concatenate items of one kind in the order of `parts`; `env_steps_at_sample` is the sum."""
    first, *others = parts
    if not others:
        return first
    by_step = _BY_STEP if isinstance(first, SequenceBatch) else ()
    columns: dict[str, Any] = {
        name: _concat([getattr(part, name) for part in parts], axis=1 if name in by_step else 0)
        for name in first.__slots__
        if name != "env_steps_at_sample"
    }
    return replace(first, **columns, env_steps_at_sample=sum(part.env_steps_at_sample for part in parts))


def _concat(values: list[Any], axis: int) -> Any:
    """Concatenate arrays along `axis`, or the arrays of trees, inputs or recurrent states."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values, axis)
    if isinstance(first, dict):
        return {key: _concat([value[key] for value in values], axis) for key in first}
    if isinstance(first, Inputs):
        return Inputs(*(_concat([getattr(value, name) for value in values], axis) for name in first.__slots__))
    return tuple(_concat(list(part), axis) for part in zip(*values, strict=True))
