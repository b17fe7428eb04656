"""Priorities of sequences (R2D2, section 2.3)."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array


def mixed(errors: Array, valid: Array, eta: float) -> Array:
    """eta * max + (1 - eta) * mean of the errors `[T, N]` that are valid: float32 `[N]`, NaN where none is."""
    largest = np.where(valid, errors, 0.0).max(0)
    number = valid.sum(0)
    mean = np.where(valid, errors, 0.0).sum(0) / np.maximum(number, 1)
    priorities: Array = np.where(number > 0, eta * largest + (1.0 - eta) * mean, np.nan).astype(np.float32)
    return priorities
