"""What travels between roles, with every shape and axis stated once.

Arrays are numpy and time-major: `T` steps of `B` environments. A tree is one array, or a dict of
arrays that share their leading axes (a `Dict` observation). Transition t reads: the policy saw
`inputs[t]`, took `actions[t]`, and the environment answered `rewards[t]`, `terminated[t]`,
`truncated[t]` and `inputs.obs[t + 1]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tree = Array | dict[str, Array]
State = tuple[Array, ...]
"""Recurrent state, one `[B, ...]` array per part; empty for a feed-forward network."""


class Version(NamedTuple):
    """Age of a set of weights: compared by epoch first, then by update.

    The epoch rises whenever a learner is restored, so weights from before a crash never look newer.
    """

    epoch: int
    update: int

    def packed(self) -> int:
        """As one integer that orders the same way, for arrays of versions."""
        return self.epoch << _UPDATE_BITS | self.update


def unpacked(version: int) -> Version:
    """The inverse of `Version.packed`."""
    return Version(version >> _UPDATE_BITS, version & _UPDATE_MASK)


_UPDATE_BITS = 40
_UPDATE_MASK = (1 << _UPDATE_BITS) - 1

AGELESS = _UPDATE_MASK
"""Packed version of steps that no weights chose, such as demonstrations: their lag is 0."""


def lags(versions: Array, now: Version) -> Array:
    """How many updates ago the weights were published that chose each step; never negative.

    After a learner was restored to an earlier update, steps from its previous life may be ahead of it: lag 0.
    """
    behind: Array = np.maximum(now.update - (versions & _UPDATE_MASK), 0)
    return behind


@dataclass(frozen=True, slots=True)
class Versioned:
    """Weights, by parameter or buffer name, and the version they are."""

    version: Version
    weights: dict[str, Array]


class Slice(NamedTuple):
    """What one shard of a parameter server holds: float32 `[n]`, a contiguous part of all parameters."""

    version: Version
    values: Array


class Stamp(NamedTuple):
    """What a gradient is: whose, which one, of which parameters, and how much it stands for.

    `worker`, `life`, `number`: the pusher's index, its incarnation and its own count, by which a repeat is known.
    `computed_at`: the version of the shard's parameters that it is the gradient of. `steps`: environment steps in it.
    `weight`: its share where several are averaged. `clock`: pushes of this worker, comparable between workers.
    """

    worker: int
    life: int
    number: int
    computed_at: Version
    steps: int
    weight: float
    clock: int


Layout = list[tuple[str, list[int]]]
"""Names and shapes of the parameters that one flat vector holds, in order."""


class _Record:
    """Base of what is pickled for every unroll or batch: as its fields, twice as fast as dataclasses pickle slots."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class Inputs(_Record):
    """What a policy is given to act at one step. Leading axes `[B]` when acting, `[T + 1, B]` in an unroll.

    `first`: bool, `obs` opens an episode, so recurrent state is zeroed before it is consumed.
    `last_action`, `last_reward` (float32): what led to `obs`; zero where `first`.
    """

    obs: Tree
    first: Array
    last_action: Array
    last_reward: Array


class Acted(NamedTuple):
    """`actions`: `[B, ...]`. `logp`: float32 `[B]`, under the distribution that drew them. `state`: to act on next.

    `q`: float32 `[B, 2]`, the values of the action taken and of the best one, if the policy values actions.
    """

    actions: Array
    logp: Array
    state: State
    q: Array | None = None


@dataclass(slots=True)
class Unroll(_Record):
    """T consecutive steps of every environment of one actor, plus the bootstrap observation.

    `inputs`: `[T + 1, B]`. `actions`: `[T, B, ...]`. `rewards`, `behaviour_logp`: float32 `[T, B]`.
    `terminated`, `truncated`: bool `[T, B]`, how the episode ended because of `actions[t]`.
    `valid`: bool `[T, B]`, false where the row is no transition (the reset row of next-step autoreset);
    such rows weigh nothing in any loss and cut every trace.
    `state`: recurrent state before `inputs[0]` was consumed, already zeroed where an episode opens.
    `versions`: int64 `[T, B]`, the packed version of the weights that chose `actions[t]`.
    `final_index`: int64 `[K, 2]` of (t, b) and `final_obs`: `[K, ...]`: the real last observations of truncated
    steps whose `inputs.obs[t + 1]` already belongs to the next episode (same-step autoreset).
    `returns`: float32 `[T, B]`, the discounted rewards of the episode so far, if rewards are normalised by them.
    `q`: float32 `[T, B, 2]`, what the policy took `actions[t]` and the best action to be worth, if it values actions.
    """

    inputs: Inputs
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    behaviour_logp: Array
    state: State
    versions: Array
    final_index: Array
    final_obs: Tree
    returns: Array | None = None
    q: Array | None = None

    def steps_after(self, before: int) -> int:
        """Environment steps behind all that was learned from, this batch included; `before`: without it."""
        return before + int(np.count_nonzero(self.valid))


class Stream(NamedTuple):
    """Whose steps: a role and its index, and which life of it. A window never spans two lives."""

    who: tuple[str, int]
    incarnation: int


class _Replayed(_Record):
    """Base of what was drawn from a replay. `taken`: environment steps the replay had taken in by then."""

    __slots__ = ()
    taken: int

    def steps_after(self, before: int) -> int:
        """Environment steps behind all that was learned from: all that were inserted, however often each was drawn."""
        return max(before, self.taken)


@dataclass(slots=True)
class Transitions(_Replayed):
    """N independent n-step transitions, as drawn from a replay.

    `obs`, `next_obs`: `[N, ...]`, at the first step and after the last. `actions`: `[N, ...]`, at the first step.
    `rewards`: float32 `[N]`, the discounted sum of the rewards on the way. `discounts`: float32 `[N]`, what a value of
    `next_obs` is worth; 0 after a termination. `versions`: int64 `[N]`, packed, of the weights that chose `actions`.
    `weights`: float32 `[N]`, importance weights, at most 1. `keys`: int64 `[N]`, to send priorities back with.
    `taken`: transitions the replay had taken in when these were drawn.
    """

    obs: Tree
    actions: Array
    rewards: Array
    discounts: Array
    next_obs: Tree
    versions: Array
    weights: Array
    keys: Array
    taken: int

    @property
    def valid(self) -> Array:
        return np.ones(len(self.rewards), np.bool_)

    def part(self, start: int, end: int) -> Transitions:
        """Transitions `start` to `end`, on the same memory."""

        def cut(leaf: Array) -> Array:
            return leaf[start:end]

        return Transitions(
            obs=map_tree(cut, self.obs),
            actions=cut(self.actions),
            rewards=cut(self.rewards),
            discounts=cut(self.discounts),
            next_obs=map_tree(cut, self.next_obs),
            versions=cut(self.versions),
            weights=cut(self.weights),
            keys=cut(self.keys),
            taken=self.taken,
        )


@dataclass(slots=True)
class Sequences(_Replayed):
    """N sequences of consecutive steps, as drawn from a replay: L steps to burn in, then T to learn from.

    `inputs`: `[L + T + 1, N]`. `actions`: `[L + T, N, ...]`. `valid`: bool `[L + T, N]`, false where no step was taken:
    in all L of a sequence that starts its episode, and past the end of the episode.
    `returns`, `discounts`: float32 `[T, N]`, the discounted sum of up to n rewards, and what the value after them is
    worth; 0 after a termination. `ahead`: int64 `[T, N]`, which of the last T + 1 observations that is the value of.
    `versions`: int64 `[L + T, N]`, packed, of the weights that chose `actions`.
    `state`: recurrent state before `inputs[0]`, each part `[N, ...]`.
    `weights`: float32 `[N]`, importance weights, at most 1. `keys`: int64 `[N]`, to send priorities back with.
    `taken`: environment steps the replay had taken in when these were drawn.
    """

    inputs: Inputs
    actions: Array
    returns: Array
    discounts: Array
    ahead: Array
    valid: Array
    versions: Array
    state: State
    weights: Array
    keys: Array
    taken: int

    @property
    def rewards(self) -> Array:
        return self.returns

    def part(self, start: int, end: int) -> Sequences:
        """Sequences `start` to `end`, on the same memory."""

        def cut(leaf: Array) -> Array:
            return leaf[:, start:end]

        inputs = self.inputs
        return Sequences(
            inputs=Inputs(
                map_tree(cut, inputs.obs), cut(inputs.first), cut(inputs.last_action), cut(inputs.last_reward)
            ),
            actions=cut(self.actions),
            returns=cut(self.returns),
            discounts=cut(self.discounts),
            ahead=cut(self.ahead),
            valid=cut(self.valid),
            versions=cut(self.versions),
            state=tuple(part[start:end] for part in self.state),
            weights=self.weights[start:end],
            keys=self.keys[start:end],
            taken=self.taken,
        )


@dataclass(slots=True)
class Labelled(_Replayed):
    """N examples of what Q should say, whoever found out.

    `obs`, `actions`: `[N, ...]`. `targets`: float32 `[N]`, what Q(obs, actions) is to be. `versions`: int64 `[N]`,
    packed, of the parameters behind the targets. `taken`: transitions the replay had taken in when they were drawn.
    """

    obs: Tree
    actions: Array
    targets: Array
    versions: Array
    taken: int

    @property
    def valid(self) -> Array:
        return np.ones(len(self.targets), np.bool_)

    @property
    def rewards(self) -> Array:
        return self.targets


Drawn = Transitions | Sequences
"""What a replay hands out."""


class Episode(NamedTuple):
    """A finished training episode, as the environment rewarded it (before clipping or scaling).

    `info`: numbers that were tracked in the info of its last step, by name; None where there were none.
    """

    reward: float
    length: int
    info: dict[str, float] | None = None


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` to matching leaves of one or more trees."""
    if isinstance(trees[0], dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    return function(*trees)


def parts_of(tree: Tree) -> Iterable[Array]:
    """The leaves of a tree, in order."""
    return tree.values() if isinstance(tree, dict) else (tree,)


def empty_tree(leading: tuple[int, ...], like: Tree) -> Tree:
    """An uninitialised tree of `leading + leaf.shape` for each leaf of `like`."""
    tree: Tree = map_tree(lambda leaf: np.empty(leading + leaf.shape, leaf.dtype), like)
    return tree


def uncut(flat: Array, parts: Layout) -> dict[str, Array]:
    """Views of a flat vector, by the name and in the shape of each parameter."""
    arrays, start = {}, 0
    for name, shape in parts:
        end = start + math.prod(shape)
        arrays[name] = flat[start:end].reshape(shape)
        start = end
    return arrays


def flatten(item: Any, arrays: dict[str, Array], path: str) -> Any:
    """Put every array of `item` into `arrays` under its path; return the rest as plain JSON values."""
    if isinstance(item, np.ndarray):
        arrays[path] = item
        return {"array": path}
    if item is None:
        return {"none": True}
    if isinstance(item, int):
        return {"number": item}
    if isinstance(item, dict):
        return {"dict": {key: flatten(value, arrays, f"{path}/{key}") for key, value in item.items()}}
    if isinstance(item, tuple):
        return {"tuple": [flatten(value, arrays, f"{path}/{i}") for i, value in enumerate(item)]}
    parts = {part.name: flatten(getattr(item, part.name), arrays, f"{path}/{part.name}") for part in fields(item)}
    return {"record": type(item).__name__, "parts": parts}


def unflatten(plan: Any, arrays: dict[str, Array]) -> Any:
    """The inverse of `flatten`."""
    if "array" in plan:
        return arrays[plan["array"]]
    if "none" in plan:
        return None
    if "number" in plan:
        return plan["number"]
    if "dict" in plan:
        return {key: unflatten(value, arrays) for key, value in plan["dict"].items()}
    if "tuple" in plan:
        return tuple(unflatten(value, arrays) for value in plan["tuple"])
    return _RECORDS[plan["record"]](**{name: unflatten(part, arrays) for name, part in plan["parts"].items()})


_RECORDS: dict[str, Callable[..., Any]] = {"Unroll": Unroll, "Inputs": Inputs, "Labelled": Labelled}
