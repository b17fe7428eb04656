"""Which observations are images, and which of them convolutions can read; without torch, so that a check can ask."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from thespis.core.config import NetworkConfig

NATURE_MIN_SIDE = 36
"""Smallest image side that the three unpadded convolutions of `NatureCNN` leave anything of."""
_LOOKS_LIKE_ONE = 8
"""Sides from which numbers in three axes are more likely an image than a table."""


def is_image(space: Space[Any]) -> bool:
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def least_side(shape: tuple[int, ...]) -> int:
    """The shorter side of an image; the smallest axis holds its channels."""
    return sorted(shape)[1]


def image_notes(space: Space[Any], network: NetworkConfig) -> list[str]:
    """What to say of images that the network will read as long vectors, which is seldom what was meant."""
    if network.torso != "auto" or network.factory:
        return []
    notes = []
    parts = space.spaces if isinstance(space, Dict) else {"": space}
    for name, part in parts.items():
        if not isinstance(part, Box) or len(part.shape) != 3:
            continue
        what, side = f"observation {name!r}".replace(" ''", ""), least_side(part.shape)
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
