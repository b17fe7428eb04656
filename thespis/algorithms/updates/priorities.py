"""Priorities of sequences (R2D2, section 2.3)."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array


def mixed_priorities(errors: Array, valid: Array, eta: float) -> Array:
    """eta * max + (1 - eta) * mean of the valid errors `[T, N]`: float32 `[N]`, NaN for columns without valid rows."""
    largest = np.where(valid, errors, 0.0).max(0)
    number = valid.sum(0)
    mean = np.where(valid, errors, 0.0).sum(0) / np.maximum(number, 1)
    priorities: Array = np.where(number > 0, eta * largest + (1.0 - eta) * mean, np.nan).astype(np.float32)
    return priorities
