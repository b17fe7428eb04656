"""Gradients of one or a few numbers, as workers push them to a parameter server."""

from __future__ import annotations

from typing import Any

import numpy as np

from thespis.core.config import OptimizerConfig
from thespis.core.types import Array, GradientMeta, Version

SGD = OptimizerConfig(kind="sgd", learning_rate=1.0)


def values(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def gradient_meta(worker: int, at: int = 0, number: int = 1, **rest: Any) -> GradientMeta:
    known = {"incarnation": 7, "computed_at": Version(0, at), "steps": 10, "weight": 1.0, "clock": number}
    return GradientMeta(worker=worker, number=number, **{**known, **rest})
