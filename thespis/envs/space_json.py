"""Converts spaces to JSON and back, so that a policy can be loaded without its environment."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from thespis.core.errors import ThespisError
from thespis.core.types import Array
from thespis.envs.spaces import AnySpace, Spaces


def dump_spaces(spaces: Spaces) -> dict[str, Any]:
    """Return the spaces as JSON values."""
    return {"observation": _dump(spaces.observation_space), "action": _dump(spaces.action_space)}


def load_spaces(text: str, name: str) -> Spaces:
    """Read spaces from the JSON text of `dump_spaces`. `name`: the file's name, for the error message."""
    try:
        data = json.loads(text)
        return Spaces(_load(data["observation"]), _load(data["action"]))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise ThespisError(
            f"{name} does not describe spaces ({error}); remove it, so that the environment is made to read its spaces"
        ) from error


def _dump(space: AnySpace) -> dict[str, Any]:
    if isinstance(space, Box):
        numbers = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"kind": "Box", **numbers, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, MultiDiscrete):
        counts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "MultiDiscrete", **counts, "dtype": str(space.dtype)}
    if isinstance(space, MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, Dict):
        return {"kind": "Dict", "parts": [[key, _dump(part)] for key, part in space.spaces.items()]}
    assert isinstance(space, Tuple)  # nothing else is supported
    return {"kind": "Tuple", "parts": [_dump(part) for part in space.spaces]}


def _load(data: dict[str, Any]) -> AnySpace:
    kind = data["kind"]
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.broadcast_to(np.array(data[end], dtype), shape) for end in ("low", "high"))
        return Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        return MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type, start=data["start"])
    if kind == "MultiBinary":
        return MultiBinary(data["n"])
    if kind == "Dict":
        return Dict([(key, _load(part)) for key, part in data["parts"]])
    if kind == "Tuple":
        return Tuple([_load(part) for part in data["parts"]])
    raise ValueError(f"there is no space {kind!r}")


def _numbers(bounds: Array) -> Any:
    """Return bounds as lists, or one number if all are equal, as for images. Infinity becomes text: JSON has none."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        bounds = bounds.flat[0]
    return _texts(bounds.tolist())


def _texts(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_texts(number) for number in numbers]
    return numbers if np.isfinite(numbers) else str(numbers)
