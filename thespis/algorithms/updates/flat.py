"""Optimisers on one flat float32 vector, in numpy, for the shards of a parameter server.

Without torch a server starts in a tenth of the time and memory. The formulas are those of `optimizers`, whose fused
kernels gain nothing on one vector; tests compare the two. Every operation is elementwise, so shards take bit-equal
steps to those of the whole vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from thespis.core.config import OptimizerConfig
from thespis.core.errors import ThespisError
from thespis.core.types import Array


class Flat(Protocol):
    """An optimiser on a flat vector. `slots`: its running averages by name, which may be views of shared memory."""

    slots: dict[str, Array]

    def step(self, values: Array, gradient: Array, learning_rate: float) -> None:
        """Change `values` in place."""


class FlatSGD:
    """Plain gradient descent."""

    def __init__(self, size: int, cfg: OptimizerConfig) -> None:
        self.slots: dict[str, Array] = {}

    def step(self, values: Array, gradient: Array, learning_rate: float) -> None:
        """Change `values` in place."""
        values -= learning_rate * gradient


class FlatAdaGrad:
    """AdaGrad, as in Downpour SGD and Gorila. The sum of squares only grows, so steps only shrink."""

    def __init__(self, size: int, cfg: OptimizerConfig) -> None:
        self._epsilon = cfg.epsilon
        self.slots: dict[str, Array] = {"squares": np.zeros(size, np.float32)}

    def step(self, values: Array, gradient: Array, learning_rate: float) -> None:
        """Change `values` in place."""
        squares = self.slots["squares"]
        squares += gradient * gradient
        values -= learning_rate * gradient / (np.sqrt(squares) + self._epsilon)


class FlatRMSProp:
    """RMSProp: epsilon inside the root, initial mean square 1, learning rate inside the momentum."""

    def __init__(self, size: int, cfg: OptimizerConfig) -> None:
        self._epsilon, self._decay, self._momentum = cfg.epsilon, cfg.decay, cfg.momentum
        self.slots: dict[str, Array] = {"mean_square": np.ones(size, np.float32)}
        if cfg.momentum:
            self.slots["velocity"] = np.zeros(size, np.float32)

    def step(self, values: Array, gradient: Array, learning_rate: float) -> None:
        """Change `values` in place."""
        mean_square = self.slots["mean_square"]
        mean_square *= self._decay
        mean_square += (1.0 - self._decay) * gradient * gradient
        step = learning_rate * gradient / np.sqrt(mean_square + self._epsilon)
        if self._momentum:
            velocity = self.slots["velocity"]
            velocity *= self._momentum
            velocity += step
            step = velocity
        values -= step


class FlatAdam:
    """Adam."""

    def __init__(self, size: int, cfg: OptimizerConfig) -> None:
        self._epsilon, self._betas = cfg.epsilon, (0.9, cfg.beta2)
        self.slots: dict[str, Array] = {
            "mean": np.zeros(size, np.float32),
            "square": np.zeros(size, np.float32),
            "steps": np.zeros(1, np.int64),
        }

    def step(self, values: Array, gradient: Array, learning_rate: float) -> None:
        """Change `values` in place."""
        mean, square, steps = self.slots["mean"], self.slots["square"], self.slots["steps"]
        first, second = self._betas
        steps += 1
        mean += (1.0 - first) * (gradient - mean)
        square *= second
        square += (1.0 - second) * gradient * gradient
        scale = learning_rate / (1.0 - first ** int(steps[0]))
        root = np.sqrt(square) / (1.0 - second ** int(steps[0])) ** 0.5
        values -= scale * mean / (root + self._epsilon)


_KINDS: dict[str, Callable[[int, OptimizerConfig], Flat]] = {
    "sgd": FlatSGD,
    "adagrad": FlatAdaGrad,
    "rmsprop": FlatRMSProp,
    "adam": FlatAdam,
}


def build_flat(cfg: OptimizerConfig, size: int) -> Flat:
    """Build the optimiser `cfg.kind` for a vector of length `size`."""
    if cfg.kind not in _KINDS:
        raise ThespisError(f"unknown optimizer '{cfg.kind}': choose {', '.join(_KINDS)}.")
    return _KINDS[cfg.kind](size, cfg)


def decayed(learning_rate: float, progress: float) -> float:
    """The learning rate after linear decay to zero. `progress`: fraction of the run that is done."""
    return learning_rate * (1.0 - min(max(progress, 0.0), 1.0))
