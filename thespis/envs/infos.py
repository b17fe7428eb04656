"""Numbers from an environment's `info` at the end of an episode: `is_success`, and the names that a user tracks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from thespis.core.types import Episode

SUCCESS = "is_success"
"""Always tracked, as in Stable-Baselines3."""
ENDED = "thespis/ended"
"""Key of `SyncVector`'s info: a dict from environment index to info, for episodes that end in this step."""


def metric(name: str, kind: str) -> str:
    """Return the metric name of a tracked number. `kind`: rollout or eval."""
    return f"{kind}/success_rate" if name == SUCCESS else f"{kind}/info/{name}"


def numbers(info: Mapping[str, Any], env: int, names: Sequence[str]) -> dict[str, float] | None:
    """Return the tracked numbers `names` of environment `env`, whose episode ended; None if it reported none.

    `info`: the info of a vector's step. Gymnasium's vectors hold an array per name and a mask `_name`; with same-step
    autoreset, `final_info` holds the infos of ended episodes.
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
    """Return `value` as a float if it is one finite number, otherwise None."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, bool | int | float | np.number | np.bool_):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def means(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the mean of each tracked number over the episodes that report it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in (episode.info or {}).items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(given) / len(given) for name, given in values.items()}
