"""Numbers of interest in an environment's `info` when an episode ends: `is_success`, and those a user names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from thespis.core.types import Episode

SUCCESS = "is_success"
"""Always tracked, as in Stable-Baselines3."""
ENDED = "thespis/ended"
"""Where `SyncVector` puts the infos of the environments whose episode this step ended, by index."""


def metric(name: str, kind: str) -> str:
    """Its name in metrics; `kind`: rollout or eval."""
    return f"{kind}/success_rate" if name == SUCCESS else f"{kind}/info/{name}"


def numbers(info: Mapping[str, Any], env: int, names: Sequence[str]) -> dict[str, float] | None:
    """Those of `names` that environment `env` gave as it ended; None if there are none.

    `info`: what a vector's step returned. Gymnasium's vectors hold an array per name and a mask `_name`; with same-step
    autoreset they keep what belongs to the ended episode in `final_info`.
    """
    if not info:
        return None
    if ENDED in info:
        mine = info[ENDED].get(env)
        found = {name: mine.get(name) for name in names} if isinstance(mine, Mapping) else {}
    else:
        found = {name: _entry(info.get("final_info", info), name, env) for name in names}
    read = {name: number for name, value in found.items() if (number := _number(value)) is not None}
    return read or None


def _entry(info: Any, name: str, env: int) -> Any:
    if not isinstance(info, Mapping):  # one info per environment
        own = info[env]
        return own.get(name) if isinstance(own, Mapping) else None
    values, mask = info.get(name), info.get(f"_{name}")
    if values is None or np.ndim(values) == 0 or (mask is not None and not mask[env]):
        return None
    return values[env]


def _number(value: Any) -> float | None:
    """`value` as a finite float, if it is one number; anything else has no mean."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, bool | int | float | np.number | np.bool_):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def means(episodes: Iterable[Episode]) -> dict[str, float]:
    """The mean of each name over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in (episode.info or {}).items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(given) / len(given) for name, given in values.items()}
