"""Which spaces are supported, what an observation looks like to a policy, and what a policy's action means."""

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
    """The spaces of one environment, as a policy sees them."""

    observation_space: AnySpace
    action_space: AnySpace


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: its key in a `Dict` observation (else None), and the shape and dtype of one row."""

    key: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """How error messages call it."""
        return "observation" if self.key is None else f"observation {self.key!r}"

    def mend(self, value: Any) -> Array:
        """`value` as an array of this dtype, or ValueError saying what is wrong; leading axes are not looked at.

        float64 where the space says float32 is common and harmless, float where it says int is a mistake.
        """
        array = np.asarray(value)
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{self.name} has dtype {array.dtype}, the space says {self.dtype}")
        # An overflow becomes inf, which the check for finite values names better than numpy's warning.
        with np.errstate(over="ignore"):
            return array.astype(self.dtype, copy=False)


def observation_space(space: AnySpace) -> AnySpace:
    """`space` as a policy sees it, with every float as float32; refuses what no network here can take."""
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
            with np.errstate(over="ignore"):  # bounds beyond float32 are as good as none
                return Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
        return space
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return space
    raise ThespisError(
        f"observation space {type(space).__name__} is not supported; "
        "wrap the environment so that it is Box, Discrete, MultiDiscrete, MultiBinary, or a flat Dict or Tuple of these"
    )


def limits(space: AnySpace) -> dict[str | None, tuple[Array, Array]]:
    """The least and greatest values of the integers in an observation, by key, where the dtype alone does not say."""
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
    """The arrays of an observation of `space`, which went through `observation_space`."""
    if isinstance(space, Dict):
        return [Leaf(key, *_row(part)) for key, part in space.spaces.items()]
    return [Leaf(None, *_row(space))]


def _row(space: AnySpace) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape = space.shape or ()
    return shape, np.dtype(np.int64) if isinstance(space, Discrete | MultiDiscrete) else np.dtype(space.dtype)


def action_row(space: AnySpace) -> Array:
    """One action as a policy holds it, zeros: floats of a Box, integers of choices.

    An action of several parts, a flat Tuple or Dict, is one float32 vector: all numbers of its Boxes, then the index
    that is chosen of each Discrete, both in the order of the parts.
    """
    if isinstance(space, Tuple | Dict):
        boxes, choices = action_parts(space)
        return np.zeros(sum(int(np.prod(box.shape)) for box in boxes) + len(choices), np.float32)
    return np.zeros(space.shape or (), np.float32 if isinstance(space, Box) else np.int64)


def action_parts(space: Tuple[Any] | Dict) -> tuple[list[Box], list[Discrete[Any]]]:
    """The Boxes and the choices of an action of several parts; refuses what is neither."""
    parts = list(space.spaces.values() if isinstance(space, Dict) else space.spaces)
    boxes = [part for part in parts if isinstance(part, Box) and np.issubdtype(part.dtype, np.floating)]
    choices = [part for part in parts if isinstance(part, Discrete)]
    if not parts or len(boxes) + len(choices) < len(parts):
        raise _unsupported(space)
    return boxes, choices


class Choices(MultiDiscrete):
    """A space like another, that sees in one comparison whether actions are in it.

    Native vectors ask for every step, and Gymnasium's answer takes a tenth of a step of 48 CartPoles.
    """

    def __init__(self, space: MultiDiscrete) -> None:
        super().__init__(space.nvec, dtype=space.dtype.type, start=space.start)
        self._counts, self._shifted = space.nvec.astype(np.uint64), bool(np.any(space.start))

    def contains(self, x: Any) -> bool:
        if type(x) is not np.ndarray or x.dtype != np.int64 or x.shape != self._shape:
            return bool(super().contains(x))
        # As numbers without a sign those below zero are too large as well.
        counted = (x - self.start if self._shifted else x).view(np.uint64)
        return 0 not in (counted < self._counts).tobytes()


def one_part(space: AnySpace) -> None:
    """Refuse actions of several parts, for all who know no such thing."""
    if isinstance(space, Tuple | Dict):
        raise ThespisError(
            f"actions of several parts, such as {space}, are learned by qtopt alone; choose it, or wrap the environment"
        )


def env_actions(space: AnySpace) -> Callable[[Array], Array]:
    """How to turn a batch of policy actions into actions of `space`.

    Policies count from 0 and live in [-1, 1]: discrete actions are shifted by the space's start; each bounded dimension
    of a Box is stretched to its bounds, an unbounded one is taken as it is; the result is clipped to the bounds.
    """
    if 0 in (space.shape or ()):
        raise ThespisError(f"action space {space} holds no numbers, so there is nothing to learn; give it at least one")
    if isinstance(space, Discrete | MultiDiscrete):
        start = space.start
        return (lambda actions: actions + start) if np.any(start) else (lambda actions: actions)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        middle, half = _stretch(space)

        def stretch(actions: Array) -> Array:
            wanted: Array = np.clip(middle + half * actions, low, high)
            return wanted.astype(space.dtype)

        return stretch
    if isinstance(space, Tuple | Dict):
        return _assemble(space)
    raise _unsupported(space)


def _assemble(space: Tuple[Any] | Dict) -> Callable[[Array], Any]:
    """How to turn vectors `[B, n]`, as `action_row` says, into B actions of `space`."""
    boxes, choices = action_parts(space)
    stretches = [env_actions(box) for box in boxes]
    ends = np.cumsum([int(np.prod(box.shape)) for box in boxes], dtype=np.int64)
    numbers = int(ends[-1]) if len(ends) else 0

    def assemble(vectors: Array) -> list[Any]:
        pieces = np.split(vectors[:, :numbers], ends[:-1], 1) if boxes else []
        drawn = [
            [np.asarray(row) for row in stretch(piece.reshape(-1, *box.shape))]
            for stretch, piece, box in zip(stretches, pieces, boxes, strict=True)
        ]
        chosen = [vectors[:, numbers + i].astype(np.int64) + choice.start for i, choice in enumerate(choices)]
        of_box, of_choice = iter(drawn), iter(chosen)
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        columns = {key: next(of_box if isinstance(part, Box) else of_choice) for key, part in parts}
        rows = [{key: column[row] for key, column in columns.items()} for row in range(len(vectors))]
        return rows if isinstance(space, Dict) else [tuple(row.values()) for row in rows]

    return assemble


def policy_actions(space: AnySpace) -> Callable[[Array], Array]:
    """The inverse of `env_actions`: what a policy would have done to take these actions of `space`."""
    if isinstance(space, Discrete | MultiDiscrete):
        return lambda actions: (actions - space.start).astype(np.int64)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        middle, half = _stretch(space)
        # A dimension with one value only has no width to divide by; whatever is done there means that value.
        return lambda actions: ((actions - middle) / np.where(half, half, 1.0)).astype(np.float32)
    raise _unsupported(space)


def _stretch(space: Box) -> tuple[Array, Array]:
    """Middle and half of the width of each dimension that is bounded; 0 and 1 for the others."""
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
