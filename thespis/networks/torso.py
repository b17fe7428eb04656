"""Torsos turn raw observations `[N, ...]` into features `[N, size]`. The observation space determines the torso."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.networks.images import NATURE_MIN_SIDE
from thespis.networks.init import orthogonal
from thespis.networks.normalize import Normalizer
from thespis.networks.numpy.mlp import mlp_forward


class MLP(nn.Module):
    """Linear layers, each followed by the activation."""

    def __init__(self, inputs: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        if activation not in ("tanh", "relu"):
            raise ThespisError(f"unknown activation '{activation}': choose tanh or relu.")
        sizes = [inputs, *hidden]
        self.layers: Sequence[nn.Linear] = nn.ModuleList(  # type: ignore[assignment]
            orthogonal(nn.Linear(before, after)) for before, after in pairwise(sizes)
        )
        self.size = sizes[-1]
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, size]` of vectors `[N, inputs]`."""
        return mlp_forward(x, self.layers, self.activation)


class Convolutional(nn.Module):
    """Convolutions of images `[N, C, H, W]`, then a linear layer with `size` features. `shape`: that of one image."""

    def __init__(self, convolutions: nn.Sequential, shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        self.convolutions = convolutions
        self.size = size
        self.output = orthogonal(nn.Linear(_count_features(convolutions, shape), size))

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, size]` of images `[N, C, H, W]`."""
        features: Tensor = self.output(self.convolutions(x)).relu()
        return features


class NatureCNN(Convolutional):
    """Three convolutions and a linear layer with 512 features (Mnih et al., 2015)."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        channels, height, width = shape
        if min(height, width) < NATURE_MIN_SIDE:
            raise ThespisError(
                f"torso 'nature' needs images of at least {NATURE_MIN_SIDE}x{NATURE_MIN_SIDE}, these are "
                f"{height}x{width}; choose --torso resnet or mlp."
            )
        convolutions = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 32, 8, 4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, 1)),
            nn.ReLU(),
            nn.Flatten(),
        )
        super().__init__(convolutions, shape, 512)


class Residual(nn.Module):
    """Pre-activation block: x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return activations `[N, channels, H, W]` of the same shape."""
        inner: Tensor = self.second(self.first(x.relu()).relu())
        return x + inner


class ImpalaResNet(Convolutional):
    """The deep network of IMPALA (figure 3): three residual stacks with 16, 32 and 32 channels, then 256 features."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        layers: list[nn.Module] = []
        channels = shape[0]
        for width in (16, 32, 32):
            layers.append(orthogonal(nn.Conv2d(channels, width, 3, padding=1)))
            layers.append(nn.MaxPool2d(3, 2, padding=1))
            layers += [Residual(width), Residual(width)]
            channels = width
        super().__init__(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()), shape, 256)


class ImageTorso(nn.Module):
    """Reads uint8 images: scales by 1/255, moves channels first, and applies the convolutions."""

    def __init__(self, shape: tuple[int, ...], kind: str) -> None:
        super().__init__()
        # Both frames [84, 84, 3] and stacks [4, 84, 84] occur: the smaller outer axis holds the channels.
        self._channels_last = shape[-1] < shape[0]
        c, h, w = (shape[2], shape[0], shape[1]) if self._channels_last else shape
        self.network = NatureCNN((c, h, w)) if kind == "nature" else ImpalaResNet((c, h, w))
        self.size = self.network.size

    def forward(self, obs: Tensor) -> Tensor:
        """Return features `[N, size]` of images `[N, ...]`."""
        if self._channels_last:
            obs = obs.permute(0, 3, 1, 2)
        features: Tensor = self.network(obs.float().mul_(1.0 / 255.0))
        return features


class VectorTorso(nn.Module):
    """Reads Box and MultiBinary observations: flattens, normalises or multiplies by `scale`, and applies an MLP."""

    def __init__(self, mlp: MLP, normalizer: Normalizer | None, scale: float) -> None:
        super().__init__()
        self._scale = scale
        self.mlp = mlp
        self.size = mlp.size
        self.normalizer = normalizer

    def rows(self, obs: Tensor) -> Tensor:
        """Return observations as `[N, features]`, before normalisation."""
        return obs.reshape(len(obs), -1)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features `[N, size]` of observations `[N, ...]`."""
        x = self.rows(obs)
        if self.normalizer is not None:
            x = self.normalizer(x)
        elif self._scale != 1.0:
            x = x * self._scale
        features: Tensor = self.mlp(x.float())
        return features


class OneHotTorso(nn.Module):
    """Reads Discrete and MultiDiscrete observations: one one-hot vector per part, then an MLP."""

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        self._sizes, self._starts = list(sizes), list(starts)
        self.mlp = MLP(sum(sizes), hidden, activation)
        self.size = self.mlp.size

    def forward(self, obs: Tensor) -> Tensor:
        """Return features `[N, size]` of observations `[N, ...]`."""
        parts = obs.reshape(len(obs), -1).long().unbind(1)
        columns = zip(parts, self._sizes, self._starts, strict=True)
        hot = torch.cat([F.one_hot(part - start, size) for part, size, start in columns], 1)
        features: Tensor = self.mlp(hot.float())
        return features


def _count_features(network: nn.Module, shape: tuple[int, int, int]) -> int:
    with torch.no_grad():
        return int(network(torch.zeros(1, *shape)).shape[1])
