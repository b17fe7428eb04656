"""Many policies of one architecture run as a batch: each has its own parameters and one environment.

The module does not import torch, so a worker with MLP policies starts in a fraction of the time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from thespis.core.types import Array, Tree
from thespis.envs.spaces import Spaces
from thespis.networks.configs import ESNetworkConfig
from thespis.networks.running_moments import Moments


class BatchedPolicy(Protocol):
    """A batch of K policies. `parameters`: float32 `[K, n]`, row k is policy k. Write them, then call `begin`."""

    parameters: Array

    def begin(self, moments: Moments | None) -> None:
        """Adopt the written parameters. `moments`: statistics that normalise observations, if any."""

    def act(self, obs: Tree) -> Array:
        """Return the greedy action of policy k on row k of `[K, ...]` observations."""


class BatchedMLP:
    """A batch of MLPs: one product of `[K, out, in]` with `[K, in, 1]` per layer."""

    def __init__(self, number: int, spaces: Spaces, cfg: ESNetworkConfig) -> None:
        sizes = layer_sizes(spaces, cfg)
        self.parameters: Array = np.zeros((number, count_parameters(sizes)), np.float32)
        self._layers = _views(self.parameters, sizes)
        self._activation: Callable[..., Any] = np.tanh if cfg.activation == "tanh" else _relu
        self._scale = np.float32(1.0 / 255.0) if spaces.observation_space.dtype == np.uint8 else None
        self._choose = best_action(spaces.action_space)
        self._moments: Moments | None = None

    def begin(self, moments: Moments | None) -> None:
        """Set the statistics; the layers are views of `parameters`."""
        self._moments = moments

    def act(self, obs: Tree) -> Array:
        """Return the greedy action of each policy."""
        assert not isinstance(obs, dict)
        x = self._read(obs.reshape(len(obs), -1))
        *hidden, (weight, bias) = self._layers
        for inner, offset in hidden:
            x = np.matmul(inner, x[:, :, None])[:, :, 0]
            x += offset
            self._activation(x, out=x)
        return self._choose(np.matmul(weight, x[:, :, None])[:, :, 0] + bias)

    def _read(self, rows: Array) -> Array:
        if self._moments is not None:
            return self._moments.scale(rows)
        rows = rows.astype(np.float32, copy=False)
        return rows if self._scale is None else rows * self._scale


def reads_vectors(space: Space[Any], cfg: ESNetworkConfig) -> bool:
    """Whether the stock network for this space is an MLP on vectors."""
    image = len(space.shape or ()) == 3 and space.dtype == np.uint8
    return isinstance(space, Box) and not image and not cfg.factory


def layer_sizes(spaces: Spaces, cfg: ESNetworkConfig) -> list[int]:
    """Return the layer sizes of the MLP: inputs, hidden layers, outputs."""
    return [math.prod(spaces.observation_space.shape or ()), *cfg.hidden, _outputs(spaces.action_space)]


def count_parameters(sizes: list[int]) -> int:
    """Return the number of weights and biases of an MLP with these layer sizes."""
    return sum((before + 1) * after for before, after in pairwise(sizes))


def best_action(space: Space[Any]) -> Callable[[Array], Array]:
    """Return a function from outputs `[K, ...]` of the last layer to greedy policy actions."""
    if isinstance(space, Discrete):
        return lambda outputs: outputs.argmax(-1)
    if isinstance(space, MultiDiscrete):
        bounds, shape = np.cumsum(space.nvec.ravel())[:-1], space.shape
        return lambda outputs: np.stack([part.argmax(-1) for part in np.split(outputs, bounds, -1)], -1).reshape(
            -1, *shape
        )
    return lambda outputs: outputs.reshape(-1, *(space.shape or ()))


def _outputs(space: Space[Any]) -> int:
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def _views(parameters: Array, sizes: list[int]) -> list[tuple[Array, Array]]:
    """Return weights `[K, out, in]` and biases `[K, out]` of each layer as views, in torch's order of parameters."""
    layers, start = [], 0
    for before, after in pairwise(sizes):
        middle, end = start + before * after, start + (before + 1) * after
        layers.append((parameters[:, start:middle].reshape(-1, after, before), parameters[:, middle:end]))
        start = end
    return layers


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0.0, out=out)
