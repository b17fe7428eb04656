"""Many policies of one form side by side, each with parameters of its own: one environment per policy.

Torch is not imported here: a worker whose policies are MLPs starts in a fraction of the time and the memory.
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
from thespis.networks.configs import EvolvedNetworkConfig
from thespis.networks.moments import Moments


class Members(Protocol):
    """`parameters`: float32 `[K, n]`, to be written before `begin`; row k is policy k."""

    parameters: Array

    def begin(self, moments: Moments | None) -> None:
        """New parameters are in place, and these are the statistics by which observations are normalised."""

    def act(self, obs: Tree) -> Array:
        """The best action of policy k on row k of `[K, ...]` observations."""


class MLPMembers:
    """MLPs, as one product of `[K, out, in]` with `[K, in, 1]` per layer."""

    def __init__(self, number: int, spaces: Spaces, cfg: EvolvedNetworkConfig) -> None:
        sizes = layer_sizes(spaces, cfg)
        self.parameters: Array = np.zeros((number, count_parameters(sizes)), np.float32)
        self._layers = _views(self.parameters, sizes)
        self._activation: Callable[..., Any] = np.tanh if cfg.activation == "tanh" else _relu
        self._scale = np.float32(1.0 / 255.0) if spaces.observation_space.dtype == np.uint8 else None
        self._choose = best_action(spaces.action_space)
        self._moments: Moments | None = None

    def begin(self, moments: Moments | None) -> None:
        self._moments = moments

    def act(self, obs: Tree) -> Array:
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


def reads_vectors(space: Space[Any], cfg: EvolvedNetworkConfig) -> bool:
    """Whether the stock network is an MLP on plain vectors here."""
    image = len(space.shape or ()) == 3 and space.dtype == np.uint8
    return isinstance(space, Box) and not image and not cfg.factory


def layer_sizes(spaces: Spaces, cfg: EvolvedNetworkConfig) -> list[int]:
    """Inputs, hidden layers and outputs of the MLP."""
    return [math.prod(spaces.observation_space.shape or ()), *cfg.hidden, _outputs(spaces.action_space)]


def count_parameters(sizes: list[int]) -> int:
    return sum((before + 1) * after for before, after in pairwise(sizes))


def best_action(space: Space[Any]) -> Callable[[Array], Array]:
    """Actions in the policy's units from outputs `[K, ...]` of its last layer."""
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
    """Weights `[K, out, in]` and biases `[K, out]` of each layer, in the order in which torch lists them."""
    layers, start = [], 0
    for before, after in pairwise(sizes):
        middle, end = start + before * after, start + (before + 1) * after
        layers.append((parameters[:, start:middle].reshape(-1, after, before), parameters[:, middle:end]))
        start = end
    return layers


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0.0, out=out)
