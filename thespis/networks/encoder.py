"""Chooses a torso for each observation space; a Dict observation gets one torso per key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError
from thespis.networks.images import NATURE_MIN_SIDE, is_image, shorter_side
from thespis.networks.inputs import TensorTree
from thespis.networks.normalize import Normalizer
from thespis.networks.torso import MLP, ImageTorso, OneHotTorso, VectorTorso

Torso = ImageTorso | OneHotTorso | VectorTorso


class Encoder(nn.Module):
    """Turns observations `[N, ...]`, a tensor or a dict of tensors, into features `[N, size]`."""

    def __init__(self, space: spaces.Space[Any], cfg: NetworkConfig) -> None:
        super().__init__()
        if cfg.torso not in ("auto", "mlp", "nature", "resnet"):
            raise ThespisError(f"unknown torso '{cfg.torso}': choose auto, mlp, nature or resnet.")
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
        if cfg.torso in ("nature", "resnet") and not any(is_image(part) for part in parts.values()):
            raise ThespisError(
                f"torso '{cfg.torso}' reads images (a Box of 3 axes of uint8), but the observations are {space}; "
                "choose --torso auto or mlp."
            )
        self._keys = list(parts) if isinstance(space, spaces.Dict) else None
        torsos = [_build_torso(name, part, cfg) for name, part in parts.items()]
        self.torsos = nn.ModuleList(torsos)
        self.size = sum(torso.size for torso in torsos)
        self.normalizes = any(isinstance(torso, VectorTorso) and torso.normalizer is not None for torso in torsos)

    def forward(self, obs: TensorTree) -> Tensor:
        """Return features `[N, size]`; a dict's features are concatenated."""
        if self._keys is None:
            features: Tensor = self.torsos[0](obs)
            return features
        assert isinstance(obs, dict)
        return torch.cat([torso(obs[key]) for key, torso in zip(self._keys, self.torsos, strict=True)], 1)

    def observe(self, obs: TensorTree) -> None:
        """Update the running statistics of normalising torsos with `[N, ...]` observations."""
        for index, torso in enumerate(self.torsos):
            if isinstance(torso, VectorTorso) and torso.normalizer is not None:
                leaf = obs[self._keys[index]] if self._keys is not None and isinstance(obs, dict) else obs
                assert isinstance(leaf, Tensor)
                torso.normalizer.update(torso.rows(leaf))


def _build_torso(name: str, space: spaces.Space[Any], cfg: NetworkConfig) -> Torso:
    if isinstance(space, spaces.Discrete):
        return OneHotTorso([int(space.n)], [int(space.start)], cfg.hidden, cfg.activation)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        return OneHotTorso(sizes, starts, cfg.hidden, cfg.activation)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ThespisError(
            f"the stock network cannot read observation '{name}' of {type(space).__name__} space; it reads Box, "
            "Discrete, MultiDiscrete, MultiBinary and flat Dicts of these, so wrap the environment or pass your own "
            "network."
        )
    if is_image(space) and cfg.torso != "mlp":
        return _build_image_torso(space, cfg)
    return _build_vector_torso(space, cfg)


def _build_image_torso(space: spaces.Space[Any], cfg: NetworkConfig) -> Torso:
    assert space.shape is not None
    if cfg.torso == "auto":
        # Grid worlds encode a few cells as tiny images, which are too small for a convolution of stride 4.
        large = shorter_side(space.shape) >= NATURE_MIN_SIDE
        return ImageTorso(space.shape, "nature") if large else _build_vector_torso(space, cfg)
    return ImageTorso(space.shape, cfg.torso)


def _build_vector_torso(space: spaces.Space[Any], cfg: NetworkConfig) -> Torso:
    assert space.shape is not None
    size = int(np.prod(space.shape))
    normalizes = cfg.normalize_observations and not is_image(space) and isinstance(space, spaces.Box)
    scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
    return VectorTorso(MLP(size, cfg.hidden, cfg.activation), Normalizer(size) if normalizes else None, scale)
