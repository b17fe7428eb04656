"""Recognises image observations, and images too small for convolutions. Imports no torch, so checks start fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from thespis.core.config import NetworkConfig

NATURE_MIN_SIDE = 36
"""Smallest image side for which the three unpadded convolutions of `NatureCNN` produce an output."""
_LOOKS_LIKE_ONE = 8
"""Side from which an array of three axes is probably an image."""


def is_image(space: Space[Any]) -> bool:
    """Whether the space is a uint8 Box of three axes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def shorter_side(shape: tuple[int, ...]) -> int:
    """Return the shorter side of an image, whose smallest axis holds the channels."""
    return sorted(shape)[1]


def image_notes(space: Space[Any], network: NetworkConfig) -> list[str]:
    """Return notes on images that an MLP will read as long vectors, which is rarely intended."""
    if network.torso != "auto" or network.factory:
        return []
    notes = []
    parts = space.spaces if isinstance(space, Dict) else {"": space}
    for name, part in parts.items():
        if not isinstance(part, Box) or len(part.shape) != 3:
            continue
        what, side = f"observation {name!r}".replace(" ''", ""), shorter_side(part.shape)
        if is_image(part) and side < NATURE_MIN_SIDE:
            notes.append(
                f"{what}: images of {part.shape} are too small for the default convolutions, which need "
                f"{NATURE_MIN_SIDE}x{NATURE_MIN_SIDE}, so an mlp reads them; --network.torso resnet takes any size"
            )
        elif not is_image(part) and side >= _LOOKS_LIKE_ONE:
            notes.append(
                f"{what}: {part.shape} of {part.dtype} is read by an mlp; give images as uint8 to have convolutions"
            )
    return notes
