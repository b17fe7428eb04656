"""Encodings of numbers for transfer: float32, or 16 bits per value."""

from __future__ import annotations

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array

_LARGEST_HALF = 65504.0
_INFINITY, _NAN = 0x7F800000, 0x7FC0


def encode(values: Array, kind: str) -> Array:
    """Encode float32 values as `float32`, `float16`, or `bfloat16` (the upper 16 bits, as uint16)."""
    if kind == "float32":
        return values
    if kind == "float16":
        # Clipped: one infinity would make a whole shard infinite.
        return np.clip(values, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    if kind == "bfloat16":
        return _upper_half(values.view(np.uint32))  # the caller has rejected NaN and infinity
    raise ThespisError(f"unknown precision '{kind}': choose float32, float16 or bfloat16.")


def decode(encoded: Array) -> Array:
    """Return the float32 values of an array from `encode`; the dtype identifies the encoding."""
    if encoded.dtype == np.uint16:
        return (encoded.astype(np.uint32) << 16).view(np.float32)
    return encoded.astype(np.float32, copy=False)


def to_bfloat16(values: Array) -> Array:
    """Return the nearest bfloat16 of any float32 values, ties to even, as uint16. Every NaN becomes the same one."""
    bits = values.view(np.uint32)
    rounded = _upper_half(bits)
    nan = bits & 0x7FFFFFFF > _INFINITY
    if nan.any():
        rounded[nan] = _NAN
    return rounded


def _upper_half(bits: Array) -> Array:
    """Round the bits of float32 to their upper 16: to nearest, ties to even. A NaN may become a number."""
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded
