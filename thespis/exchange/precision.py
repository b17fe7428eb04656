"""Encodings of a gradient for transfer: float32, or 16 bits per value."""

from __future__ import annotations

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

_LARGEST_HALF = 65504.0


def encode(values: Array, kind: str) -> Array:
    """Encode float32 values as `float32`, `float16`, or `bfloat16` (the upper 16 bits, as uint16)."""
    if kind == "float32":
        return values
    if kind == "float16":
        # Clipped: one infinity would make a whole shard infinite.
        return np.clip(values, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    if kind == "bfloat16":
        bits = values.view(np.uint32)
        # Round to nearest, ties to even. The caller has rejected NaN and infinity.
        rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return rounded
    raise ThespisError(f"unknown precision '{kind}': choose float32, float16 or bfloat16.")


def decode(encoded: Array) -> Array:
    """Return the float32 values of an array from `encode`; the dtype identifies the encoding."""
    if encoded.dtype == np.uint16:
        return (encoded.astype(np.uint32) << 16).view(np.float32)
    return encoded.astype(np.float32, copy=False)
