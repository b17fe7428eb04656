"""Running normalisation of vector observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from thespis.core.types import Array
from thespis.networks.running_moments import MAX_DEVIATIONS


class RowMoments(NamedTuple):
    """Number of rows, and their mean and variance, float64 `[size]`."""

    number: int
    mean: Tensor
    var: Tensor


class Normalizer(nn.Module):
    """Subtracts a running mean and divides by a running standard deviation, per element.

    The statistics are buffers. They are published with the weights, so actors normalise exactly as the learner did at
    that version. Only `update` changes them, never `forward`.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        # float64: a float32 count stops growing after 2**24 rows.
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.collected: list[RowMoments] | None = None
        """Where `update` puts the moments of its rows instead of merging them; None: it merges them."""

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Merge `[N, size]` observations into the statistics (Chan et al.: exact, in any order)."""
        if not len(rows):
            return
        rows = rows.double()
        moments = RowMoments(len(rows), rows.mean(0), rows.var(0, correction=0))
        if self.collected is None:
            self.merge(moments)
        else:
            self.collected.append(moments)

    @torch.no_grad()
    def merge(self, moments: RowMoments) -> None:
        """Merge the moments of further observations into the statistics."""
        added, mean, var = moments
        total = self.count + added
        gap = mean - self.mean
        squares = self.var * self.count + var * added + gap**2 * (self.count * added / total)
        self.mean += gap * (added / total)
        self.var.copy_(squares / total)
        self.count.copy_(total)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise `[N, size]` observations and clip them."""
        scale = (self.var + 1e-8).rsqrt()
        return ((rows - self.mean) * scale).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS).float()


def collect_moments(network: object, observe: Callable[[], Any]) -> Array:
    """The moments that `observe` would merge into each normaliser of a network, as one array; empty without one."""
    found = _normalizers(network)
    for normalizer in found:
        normalizer.collected = []
    try:
        observe()
        empty = [RowMoments(0, torch.zeros_like(each.mean), torch.zeros_like(each.var)) for each in found]
        moments = [(each.collected or [none])[0] for each, none in zip(found, empty, strict=True)]
    finally:
        for normalizer in found:
            normalizer.collected = None
    parts = [part for number, mean, var in moments for part in ([number], mean.numpy(), var.numpy())]
    return np.concatenate(parts) if parts else np.empty(0)


def merge_moments(network: object, collected: Sequence[Array]) -> None:
    """Merge results of `collect_moments` into the normalisers of a network, in the given order."""
    for array in collected:
        start = 0
        for normalizer in _normalizers(network):
            size = len(normalizer.mean)
            number, mean, var = np.split(array[start : start + 1 + 2 * size], [1, 1 + size])
            if number[0]:
                normalizer.merge(RowMoments(int(number[0]), torch.from_numpy(mean), torch.from_numpy(var)))
            start += 1 + 2 * size


def _normalizers(network: object) -> list[Normalizer]:
    modules = network.modules() if isinstance(network, nn.Module) else ()
    return [module for module in modules if isinstance(module, Normalizer)]
