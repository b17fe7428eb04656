"""Supported spaces, the form of observations that a policy receives, and the meaning of a policy's actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from thespis.core.errors import ThespisError
from thespis.core.types import Array

AnySpace = Space[Any]


@dataclass(frozen=True, slots=True)
class Spaces:
    """Observation and action space of one environment, as a policy sees them."""

    observation_space: AnySpace
    action_space: AnySpace


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: its key in a `Dict` observation (otherwise None), and shape and dtype of one row."""

    key: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The name of the array in error messages."""
        return "observation" if self.key is None else f"observation {self.key!r}"

    def cast(self, value: Any) -> Array:
        """Return `value` as an array of this dtype, or raise ValueError; the shape is not checked.

        float64 in place of float32 is common and harmless, but a float in place of an integer is a mistake.
        """
        array = np.asarray(value)
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{self.name} has dtype {array.dtype}, the space says {self.dtype}")
        # An overflow becomes inf; the check for finite values reports it better than numpy's warning.
        with np.errstate(over="ignore"):
            return array.astype(self.dtype, copy=False)


def observation_space(space: AnySpace) -> AnySpace:
    """Return `space` as a policy sees it, with every float as float32; refuse spaces that no network supports."""
    if isinstance(space, Dict):
        if not space.spaces or any(isinstance(part, Dict | Tuple) for part in space.spaces.values()):
            raise ThespisError(
                f"observation space {space} is not supported; flatten it into one non-empty, flat Dict or Tuple"
            )
        return Dict({key: observation_space(part) for key, part in space.spaces.items()})
    if 0 in (space.shape or ()):
        raise ThespisError(f"observation space {space} holds no numbers; leave it out, or give it at least one")
    if isinstance(space, Box):
        if np.issubdtype(space.dtype, np.floating) and space.dtype != np.float32:
            with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
                return Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
        return space
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return space
    raise ThespisError(
        f"observation space {type(space).__name__} is not supported; "
        "wrap the environment so that it is Box, Discrete, MultiDiscrete, MultiBinary, or a flat Dict or Tuple of these"
    )


def limits(space: AnySpace) -> dict[str | None, tuple[Array, Array]]:
    """Return the lower and upper bounds of integer observations, by key, if they are narrower than the dtype."""
    found: dict[str | None, tuple[Array, Array]] = {}
    parts: Any = space.spaces.items() if isinstance(space, Dict) else [(None, space)]
    for key, part in parts:
        if isinstance(part, Discrete):
            found[key] = np.asarray(part.start), np.asarray(part.start + part.n - 1)
        elif isinstance(part, MultiDiscrete):
            found[key] = part.start, part.start + part.nvec - 1
        elif isinstance(part, MultiBinary):
            found[key] = np.zeros((), np.int8), np.ones((), np.int8)
        elif isinstance(part, Box) and part.dtype.kind in "iu":
            any_value = np.iinfo(part.dtype)
            if (part.low > any_value.min).any() or (part.high < any_value.max).any():
                found[key] = part.low, part.high
    return found


def leaves(space: AnySpace) -> list[Leaf]:
    """Return the arrays of an observation of `space`, which `observation_space` returned."""
    if isinstance(space, Dict):
        return [Leaf(key, *_row(part)) for key, part in space.spaces.items()]
    return [Leaf(None, *_row(space))]


def _row(space: AnySpace) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape = space.shape or ()
    return shape, np.dtype(np.int64) if isinstance(space, Discrete | MultiDiscrete) else np.dtype(space.dtype)


def action_row(space: AnySpace) -> Array:
    """Return zeros with the shape and dtype of one policy action: float32 for a Box, int64 for discrete actions.

    A composite action, a flat Tuple or Dict, is one float32 vector: all numbers of its Boxes, then the chosen index of
    each Discrete, both in the order of the parts.
    """
    if isinstance(space, Tuple | Dict):
        boxes, choices = action_parts(space)
        return np.zeros(sum(int(np.prod(box.shape)) for box in boxes) + len(choices), np.float32)
    return np.zeros(space.shape or (), np.float32 if isinstance(space, Box) else np.int64)


def action_parts(space: Tuple[Any] | Dict) -> tuple[list[Box], list[Discrete[Any]]]:
    """Return the Boxes and the Discrete spaces of a composite action space; refuse other parts."""
    parts = list(space.spaces.values() if isinstance(space, Dict) else space.spaces)
    boxes = [part for part in parts if isinstance(part, Box) and np.issubdtype(part.dtype, np.floating)]
    choices = [part for part in parts if isinstance(part, Discrete)]
    if not parts or len(boxes) + len(choices) < len(parts):
        raise _unsupported(space)
    return boxes, choices


class FastMultiDiscrete(MultiDiscrete):
    """A MultiDiscrete space with a fast `contains`: one comparison for all actions.

    Native vectors call it in every step. Gymnasium's version takes a tenth of the time of a step of 48 CartPoles.
    """

    def __init__(self, space: MultiDiscrete) -> None:
        super().__init__(space.nvec, dtype=space.dtype.type, start=space.start)
        self._counts, self._shifted = space.nvec.astype(np.uint64), bool(np.any(space.start))

    def contains(self, x: Any) -> bool:
        """Whether `x` is an action of the space."""
        if type(x) is not np.ndarray or x.dtype != np.int64 or x.shape != self._shape:
            return bool(super().contains(x))
        # As unsigned numbers, negative ones are too large as well.
        counted = (x - self.start if self._shifted else x).view(np.uint64)
        return 0 not in (counted < self._counts).tobytes()


def refuse_composite_actions(space: AnySpace) -> None:
    """Raise a `ThespisError` if actions have several parts, for algorithms that do not support them."""
    if isinstance(space, Tuple | Dict):
        raise ThespisError(
            f"only qtopt learns actions of several parts, such as {space}; choose it, or wrap the environment"
        )


def env_actions(space: AnySpace) -> Callable[[Array], Array]:
    """Return a function that converts a batch of policy actions to actions of `space`.

    A policy's discrete actions count from 0; the function adds the start of the space. A policy's continuous actions
    are in [-1, 1]; the function scales each bounded dimension of a Box to its bounds, keeps unbounded ones, and clips
    the result to the bounds.
    """
    if 0 in (space.shape or ()):
        raise ThespisError(f"action space {space} holds no numbers; give it at least one")
    if isinstance(space, Discrete | MultiDiscrete):
        start = space.start
        return (lambda actions: actions + start) if np.any(start) else (lambda actions: actions)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        middle, half = _center_and_scale(space)

        def rescale(actions: Array) -> Array:
            scaled: Array = np.clip(middle + half * actions, low, high)
            return scaled.astype(space.dtype)

        return rescale
    if isinstance(space, Tuple | Dict):
        return _assemble(space)
    raise _unsupported(space)


def _assemble(space: Tuple[Any] | Dict) -> Callable[[Array], Any]:
    """Return a function that converts vectors `[B, n]`, laid out as in `action_row`, to B actions of `space`."""
    boxes, choices = action_parts(space)
    rescalers = [env_actions(box) for box in boxes]
    ends = np.cumsum([int(np.prod(box.shape)) for box in boxes], dtype=np.int64)
    numbers = int(ends[-1]) if len(ends) else 0

    def assemble(vectors: Array) -> list[Any]:
        pieces = np.split(vectors[:, :numbers], ends[:-1], 1) if boxes else []
        scaled = [
            [np.asarray(row) for row in rescale(piece.reshape(-1, *box.shape))]
            for rescale, piece, box in zip(rescalers, pieces, boxes, strict=True)
        ]
        chosen = [vectors[:, numbers + i].astype(np.int64) + choice.start for i, choice in enumerate(choices)]
        of_box, of_choice = iter(scaled), iter(chosen)
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        columns = {key: next(of_box if isinstance(part, Box) else of_choice) for key, part in parts}
        rows = [{key: column[row] for key, column in columns.items()} for row in range(len(vectors))]
        return rows if isinstance(space, Dict) else [tuple(row.values()) for row in rows]

    return assemble


def policy_actions(space: AnySpace) -> Callable[[Array], Array]:
    """Return the inverse of `env_actions`: a function from actions of `space` to policy actions."""
    if isinstance(space, Discrete | MultiDiscrete):
        return lambda actions: (actions - space.start).astype(np.int64)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        middle, half = _center_and_scale(space)
        # A dimension with a single value has width zero; every policy action means that value.
        return lambda actions: ((actions - middle) / np.where(half, half, 1.0)).astype(np.float32)
    raise _unsupported(space)


def _center_and_scale(space: Box) -> tuple[Array, Array]:
    """Return the center and half the width of each bounded dimension; 0 and 1 for unbounded ones."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    middle, half = np.zeros_like(low), np.ones_like(low)
    half[bounded] = high[bounded] / 2 - low[bounded] / 2
    middle[bounded] = high[bounded] / 2 + low[bounded] / 2
    return middle, half


def _unsupported(space: AnySpace) -> ThespisError:
    return ThespisError(
        f"action space {space} is not supported; "
        "wrap the environment so that it is Discrete, MultiDiscrete, a Box of floats, or for some architectures a flat "
        "Tuple or Dict of Discrete and Boxes of floats"
    )
