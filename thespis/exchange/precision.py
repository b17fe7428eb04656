"""How the numbers of a gradient travel: as they are, or in half the bytes."""

from __future__ import annotations

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

_LARGEST_HALF = 65504.0


def encode(values: Array, kind: str) -> Array:
    """float32 values for the wire: `float32`, `float16`, or `bfloat16` as the upper halves, uint16."""
    if kind == "float32":
        return values
    if kind == "float16":
        # Clipped: one infinity would spoil a whole shard.
        return np.clip(values, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    if kind == "bfloat16":
        bits = values.view(np.uint32)
        # To the nearest, ties to even; NaN and infinity never get here.
        rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return rounded
    raise ThespisError(f"unknown precision '{kind}': choose float32, float16 or bfloat16.")


def decode(wire: Array) -> Array:
    """The float32 values that `encode` sent; the type of the array says how."""
    if wire.dtype == np.uint16:
        return (wire.astype(np.uint32) << 16).view(np.float32)
    return wire.astype(np.float32, copy=False)
