"""Initialisation: orthogonal weights, zero biases, and a seed that does not touch torch's global generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network")
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = 2.0**0.5) -> Layer:
    """Initialise a layer and return it. The default gain preserves the scale of activations through a ReLU."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def init_network(factory: Callable[[], Network], seed: int) -> Network:
    """Build a network whose weights depend on `seed` only; torch's global generator keeps its state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return factory()
