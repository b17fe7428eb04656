"""Memory check: the members that train at the same time must fit into the machine's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.system.memory import available_memory
from thespis.envs.spaces import Spaces

_TORCH_PROCESS_BYTES = 300 << 20
"""Memory of a process with torch and a small network (measured: 280 MB, of which 90 are shared)."""


def refuse_more_than_fits(cfg: Experiment, spaces: Spaces, processes: int, members: int) -> None:
    """Refuse members that exceed the free memory. `processes`: processes per member besides its trainer."""
    each = (1 + processes) * _TORCH_PROCESS_BYTES + replay_bytes(cfg, spaces.observation_space)
    free = available_memory()
    if members * each > free:
        raise ThespisError(
            f"{members} members at a time need about {_gigabytes(members * each)} of memory ({_gigabytes(each)} each), "
            f"and {_gigabytes(free)} are free; give --slots {max(1, free // each)} or a smaller replay"
        )


def replay_bytes(cfg: Experiment, space: Space[Any]) -> int:
    """Memory of a full replay's observations; 0 if the algorithm uses no replay."""
    items = None if cfg.learned is None else cfg.learned.items
    replay = getattr(items, "replay", None)
    if replay is None:
        return 0
    steps = int(replay.capacity * _bytes(space))
    return min(steps, replay.bytes) if replay.bytes else steps


def _bytes(space: Space[Any]) -> int:
    if isinstance(space, Dict):
        return sum(map(_bytes, space.spaces.values()))
    return int(np.prod(space.shape or (1,))) * np.dtype(space.dtype).itemsize


def _gigabytes(number: int) -> str:
    return f"{number / 2**30:.1f} GB"
