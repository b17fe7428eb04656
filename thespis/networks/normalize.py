"""Running normalisation of vector observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from thespis.networks.running_moments import MAX_DEVIATIONS


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

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Merge `[N, size]` observations into the statistics (Chan et al.: exact, in any order)."""
        rows = rows.double()
        added = len(rows)
        if not added:
            return
        total = self.count + added
        gap = rows.mean(0) - self.mean
        squares = self.var * self.count + rows.var(0, correction=0) * added + gap**2 * (self.count * added / total)
        self.mean += gap * (added / total)
        self.var.copy_(squares / total)
        self.count.copy_(total)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise `[N, size]` observations and clip them."""
        scale = (self.var + 1e-8).rsqrt()
        return ((rows - self.mean) * scale).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS).float()
