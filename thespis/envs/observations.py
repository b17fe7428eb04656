"""Reads the observations that a user passes to a policy: one observation or a batch, distinguished by shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Tree
from thespis.envs.spaces import AnySpace, Leaf, leaves, limits
from thespis.envs.wrappers import named_parts


class ObservationReader:
    """Reads observations of one space, as `observation_space` returns it. Errors name the wrong part."""

    def __init__(self, space: AnySpace) -> None:
        self._leaves, self._limits = leaves(space), limits(space)
        self._spaces: Mapping[Any, AnySpace] = space.spaces if isinstance(space, Dict) else {None: space}

    def read(self, obs: Any) -> tuple[Tree, bool]:
        """Return a tree of `[B, ...]` arrays, and whether `obs` is a batch; one observation becomes a batch of 1."""
        values = self._values(obs)
        rows: dict[str, int | None] = {}
        arrays: dict[str | None, Array] = {}
        for leaf in self._leaves:
            array = self._array(leaf, values[leaf.key])
            rows[leaf.name] = len(array) if array.shape != leaf.shape else None
            arrays[leaf.key] = array if array.shape != leaf.shape else array[None]
        if len(set(rows.values())) > 1:
            sizes = ", ".join(f"{name}: {'one' if size is None else f'{size} rows'}" for name, size in rows.items())
            raise ThespisError(
                f"the parts of the observation have different batch sizes ({sizes}); give all the same number of rows"
            )
        batched = next(iter(rows.values())) is not None
        if None in arrays:
            return arrays[None], batched
        return {str(key): array for key, array in arrays.items()}, batched

    def _values(self, obs: Any) -> Mapping[Any, Any]:
        if self._leaves[0].key is None:
            if isinstance(obs, Mapping):
                leaf = self._leaves[0]
                raise ThespisError(
                    f"the observation is a dict of {', '.join(map(repr, obs))}; "
                    f"the policy takes one array of shape {leaf.shape} and dtype {leaf.dtype}"
                )
            return {None: obs}
        keys = [leaf.key for leaf in self._leaves]
        if isinstance(obs, tuple) and set(keys) == set(map(str, range(len(obs)))):
            return named_parts(obs)
        if not isinstance(obs, Mapping):
            raise ThespisError(
                f"the observation is a {type(obs).__name__}; the policy takes a dict of {', '.join(map(repr, keys))}"
            )
        missing = [repr(key) for key in keys if key not in obs]
        unknown = [repr(key) for key in obs if key not in keys]
        if missing or unknown:
            wrong = " and ".join(
                part
                for part in (
                    f"lacks {', '.join(missing)}" if missing else "",
                    f"has the unknown {', '.join(unknown)}" if unknown else "",
                )
                if part
            )
            raise ThespisError(f"the observation {wrong}; the policy takes a dict of {', '.join(map(repr, keys))}")
        return obs

    def _array(self, leaf: Leaf, value: Any) -> Array:
        expected = f"one is {leaf.dtype} of shape {leaf.shape}, a batch is {_batch(leaf.shape)}"
        try:
            array = leaf.cast(value)
        except (TypeError, ValueError) as error:
            raise ThespisError(f"{leaf.name} cannot be read: {error}; {expected}") from None
        if array.shape != leaf.shape and (array.shape[1:] != leaf.shape or not array.ndim):
            raise ThespisError(f"{leaf.name} has shape {array.shape}; {expected}")
        if not array.size and 0 not in leaf.shape:
            raise ThespisError(f"{leaf.name} is a batch of 0 rows; {expected}")
        self._check_range(leaf, array)
        return array

    def _check_range(self, leaf: Leaf, array: Array) -> None:
        """Refuse integers outside the space, on which a network fails without naming the observation, and NaN."""
        if leaf.dtype.kind == "f":
            finite = np.isfinite(array)
            if not finite.all():
                raise ThespisError(f"{leaf.name} holds {array[~finite].flat[0]}")
        if leaf.key not in self._limits:
            return
        low, high = self._limits[leaf.key]
        wrong = (array < low) | (array > high)
        if np.any(wrong):
            space = self._spaces[leaf.key]
            raise ThespisError(f"{leaf.name} holds {array[wrong].flat[0]}, which is not in {space}")


def _batch(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['rows', *map(str, shape)])}{',' if not shape else ''})"
