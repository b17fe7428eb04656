"""The data that roles exchange: weights, gradients, and the three kinds of experience. Every shape is stated here.

Arrays are numpy arrays and time-major: `T` steps of `B` environments. A tree is one array, or a dict of arrays with
equal leading axes (a `Dict` observation). At transition t, the policy receives `inputs[t]` and takes `actions[t]`; the
environment returns `rewards[t]`, `terminated[t]`, `truncated[t]` and `inputs.obs[t + 1]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tree = Array | dict[str, Array]
State = tuple[Array, ...]
"""Recurrent state: one `[B, ...]` array per part (an LSTM has two); empty for a feed-forward network."""


class Version(NamedTuple):
    """Version of a set of weights, ordered by epoch, then by update.

    The epoch rises whenever a learner is restored, so weights from before a crash never compare as newer.
    """

    epoch: int
    update: int

    def packed(self) -> int:
        """Return the version as one integer with the same order, for arrays of versions."""
        return self.epoch << _UPDATE_BITS | self.update


def unpack_version(version: int) -> Version:
    """Return the version that `Version.packed` turned into an integer."""
    return Version(version >> _UPDATE_BITS, version & _UPDATE_MASK)


_UPDATE_BITS = 40
_UPDATE_MASK = (1 << _UPDATE_BITS) - 1

NO_VERSION = _UPDATE_MASK
"""Packed version of steps that no policy of this run chose, such as demonstrations; their lag is 0."""


def lags(versions: Array, now: Version) -> Array:
    """Return the lag of each step: updates between the weights that chose it and `now`; never negative.

    A learner restored to an earlier update may receive steps from a later one. Their lag is 0.
    """
    behind: Array = np.maximum(now.update - (versions & _UPDATE_MASK), 0)
    return behind


@dataclass(frozen=True, slots=True)
class VersionedWeights:
    """Weights by name of the parameter or buffer, and their version."""

    version: Version
    weights: dict[str, Array]


class ParameterSlice(NamedTuple):
    """The parameters of one parameter-server shard: float32 `[n]`, a contiguous part of the flat vector."""

    version: Version
    values: Array


class GradientMeta(NamedTuple):
    """Metadata of a pushed gradient.

    `worker`, `incarnation`, `number`: the worker's index, its incarnation and its count of gradients; a server
    recognises a repeated push by them. `computed_at`: the version of the shard's parameters at which the gradient was
    computed. `steps`: environment steps in its batch. `weight`: its weight in an average of several gradients.
    `clock`: the worker's number of pushes, comparable between workers.
    """

    worker: int
    incarnation: int
    number: int
    computed_at: Version
    steps: int
    weight: float
    clock: int


ParameterLayout = list[tuple[str, list[int]]]
"""Names and shapes of the parameters that one flat vector holds, in order."""


class _Record:
    """Base of experience records. Pickles the fields as a tuple, twice as fast as the default for slots."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__slots__)

    def map(self, function: Callable[[Array], Array], **others: Any) -> Self:
        """Return a record of `function(array)` for every array, and of `others` for the fields that they name."""
        values = {name: map_tree(function, getattr(self, name)) for name in self.__slots__ if name not in others}
        return type(self)(**values, **others)


@dataclass(slots=True)
class Inputs(_Record):
    """The inputs of a policy at one step. Leading axes: `[B]` when acting, `[T + 1, B]` in an unroll.

    `first`: bool, true where `obs` starts an episode; the policy zeroes its recurrent state before it reads `obs`.
    `last_action`, `last_reward` (float32): the action and reward before `obs`; zero where `first`.
    """

    obs: Tree
    first: Array
    last_action: Array
    last_reward: Array


class PolicyOutput(NamedTuple):
    """The result of one policy step.

    `actions`: `[B, ...]`. `logp`: float32 `[B]`, their log-probabilities under the distribution that drew them.
    `state`: recurrent state for the next step. `q`: float32 `[B, 2]`, the Q-values of the chosen and of the best
    action, if the policy computes Q-values.
    """

    actions: Array
    logp: Array
    state: State
    q: Array | None = None


@dataclass(slots=True)
class Unroll(_Record):
    """T consecutive steps of every environment of one actor, plus the bootstrap observation.

    `inputs`: `[T + 1, B]`. `actions`: `[T, B, ...]`. `rewards`, `behaviour_logp`: float32 `[T, B]`.
    `terminated`, `truncated`: bool `[T, B]`, how `actions[t]` ended the episode, if it did.
    `valid`: bool `[T, B]`, false where the row is no transition (the reset row of next-step autoreset). Losses ignore
    such rows, and every trace is cut there.
    `state`: recurrent state before `inputs[0]`, zeroed where an episode starts.
    `versions`: int64 `[T, B]`, the packed version of the weights that chose `actions[t]`.
    `final_index`: int64 `[K, 2]` of (t, b), and `final_obs`: `[K, ...]`: the true last observations of truncated steps
    whose `inputs.obs[t + 1]` already belongs to the next episode (same-step autoreset).
    `returns`: float32 `[T, B]`, the episode's discounted return so far; only if rewards are normalised by it.
    `q`: float32 `[T, B, 2]`, the Q-values of `actions[t]` and of the best action, if the policy computes Q-values.
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
        """Return the environment steps learned from so far: `before` plus the valid steps of this unroll."""
        return before + int(np.count_nonzero(self.valid))


class Stream(NamedTuple):
    """The origin of a stream of steps: role, index and incarnation. A trajectory never spans two incarnations."""

    who: tuple[str, int]
    incarnation: int


class _ReplayRecord(_Record):
    """Base of samples from a replay buffer. `env_steps_at_sample`: steps inserted into the buffer before the sample."""

    __slots__ = ()
    env_steps_at_sample: int

    def steps_after(self, before: int) -> int:
        """Return the environment steps learned from so far: all inserted steps, however often each was sampled."""
        return max(before, self.env_steps_at_sample)


class _AllValid:
    """Part of samples in which every row counts in the loss."""

    __slots__ = ()
    versions: Array

    @property
    def valid(self) -> Array:
        """Bool `[N]`, all true: every row counts in the loss."""
        return np.ones(len(self.versions), np.bool_)


@dataclass(slots=True)
class TransitionBatch(_AllValid, _ReplayRecord):
    """N independent n-step transitions, sampled from a replay buffer.

    `obs`, `next_obs`: `[N, ...]`, the observations before the first and after the last step.
    `actions`: `[N, ...]`, the actions at the first step. `rewards`: float32 `[N]`, the discounted sum of the n rewards.
    `discounts`: float32 `[N]`, the factor of the bootstrap value of `next_obs`; 0 after a termination.
    `versions`: int64 `[N]`, the packed version of the weights that chose `actions`.
    `weights`: float32 `[N]`, importance weights, at most 1. `keys`: int64 `[N]`, for sending new priorities.
    `env_steps_at_sample`: transitions inserted into the buffer before the sample, one per environment step.
    """

    obs: Tree
    actions: Array
    rewards: Array
    discounts: Array
    next_obs: Tree
    versions: Array
    weights: Array
    keys: Array
    env_steps_at_sample: int

    def part(self, start: int, end: int) -> TransitionBatch:
        """Return transitions `start` to `end` as views."""
        return self.map(lambda leaf: leaf[start:end], env_steps_at_sample=self.env_steps_at_sample)


@dataclass(slots=True)
class SequenceBatch(_ReplayRecord):
    """N sequences of consecutive steps, sampled from a replay buffer: L burn-in steps, then T learning steps.

        step   0 ... L-1 | L ... L+T-1 | L+T
               burn-in     learning      bootstrap observation

    `inputs`: `[L + T + 1, N]`. `actions`: `[L + T, N, ...]`. `valid`: bool `[L + T, N]`, false where no step was taken:
    in the burn-in of a sequence that starts its episode, and past the end of the episode.
    `rewards`: float32 `[T, N]`, the discounted sum of up to n rewards. `discounts`: float32 `[T, N]`, the factor of the
    bootstrap value after them; 0 after a termination. `ahead`: int64 `[T, N]`, the index of the bootstrap observation
    among the last T + 1.
    `versions`: int64 `[L + T, N]`, the packed version of the weights that chose `actions`.
    `state`: recurrent state before `inputs[0]`, each part `[N, ...]`.
    `weights`: float32 `[N]`, importance weights, at most 1. `keys`: int64 `[N]`, for sending new priorities.
    `env_steps_at_sample`: environment steps inserted into the buffer before the sample.
    """

    inputs: Inputs
    actions: Array
    rewards: Array
    discounts: Array
    ahead: Array
    valid: Array
    versions: Array
    state: State
    weights: Array
    keys: Array
    env_steps_at_sample: int

    def part(self, start: int, end: int) -> SequenceBatch:
        """Return sequences `start` to `end` as views."""

        def cut(leaf: Array) -> Array:
            return leaf[:, start:end]

        return self.map(
            cut,
            inputs=self.inputs.map(cut),
            state=tuple(part[start:end] for part in self.state),
            weights=self.weights[start:end],
            keys=self.keys[start:end],
            env_steps_at_sample=self.env_steps_at_sample,
        )


@dataclass(slots=True)
class Labelled(_AllValid, _ReplayRecord):
    """N training examples for a Q-function with targets computed beforehand, e.g. by a Bellman updater.

    `obs`, `actions`: `[N, ...]`. `targets`: float32 `[N]`, the targets of Q(obs, actions). `versions`: int64 `[N]`, the
    packed version of the parameters behind the targets. `env_steps_at_sample`: transitions inserted into the replay
    buffer before these were sampled, one per environment step.
    """

    obs: Tree
    actions: Array
    targets: Array
    versions: Array
    env_steps_at_sample: int

    @property
    def rewards(self) -> Array:
        """The targets, under the name that other batches use."""
        return self.targets


ReplaySample = TransitionBatch | SequenceBatch
"""A batch sampled from a replay buffer."""


class Episode(NamedTuple):
    """A finished training episode. `reward`: the sum of the environment's own rewards, before clipping or scaling.

    `length`: number of steps. `info`: tracked numbers of the last step's info, by name; None if there are none.
    """

    reward: float
    length: int
    info: dict[str, float] | None = None


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` to the matching leaves of one or more trees, and return the tree of results."""
    if isinstance(trees[0], dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    return function(*trees)


def tree_leaves(tree: Tree) -> Iterable[Array]:
    """Return the leaves of a tree, in order."""
    return tree.values() if isinstance(tree, dict) else (tree,)


def empty_tree(leading: tuple[int, ...], like: Tree) -> Tree:
    """Return an uninitialised tree with leaves of shape `leading + leaf.shape` for each leaf of `like`."""
    tree: Tree = map_tree(lambda leaf: np.empty(leading + leaf.shape, leaf.dtype), like)
    return tree


def unflatten_parameters(flat: Array, parts: ParameterLayout) -> dict[str, Array]:
    """Return views of a flat vector, one per parameter, by name and in the parameter's shape."""
    arrays, start = {}, 0
    for name, shape in parts:
        end = start + math.prod(shape)
        arrays[name] = flat[start:end].reshape(shape)
        start = end
    return arrays


def item_to_arrays(item: Any, arrays: dict[str, Array], path: str) -> Any:
    """Move every array of `item` into `arrays` under its path, and return the structure as JSON values."""
    if isinstance(item, np.ndarray):
        arrays[path] = item
        return {"array": path}
    if item is None:
        return {"none": True}
    if isinstance(item, int):
        return {"number": item}
    if isinstance(item, dict):
        return {"dict": {key: item_to_arrays(value, arrays, f"{path}/{key}") for key, value in item.items()}}
    if isinstance(item, tuple):
        return {"tuple": [item_to_arrays(value, arrays, f"{path}/{i}") for i, value in enumerate(item)]}
    parts = {
        part.name: item_to_arrays(getattr(item, part.name), arrays, f"{path}/{part.name}") for part in fields(item)
    }
    return {"record": type(item).__name__, "parts": parts}


def item_from_arrays(plan: Any, arrays: dict[str, Array]) -> Any:
    """Rebuild the item that `item_to_arrays` took apart."""
    if "array" in plan:
        return arrays[plan["array"]]
    if "none" in plan:
        return None
    if "number" in plan:
        return plan["number"]
    if "dict" in plan:
        return {key: item_from_arrays(value, arrays) for key, value in plan["dict"].items()}
    if "tuple" in plan:
        return tuple(item_from_arrays(value, arrays) for value in plan["tuple"])
    return _RECORDS[plan["record"]](**{name: item_from_arrays(part, arrays) for name, part in plan["parts"].items()})


_RECORDS: dict[str, Callable[..., Any]] = {"Unroll": Unroll, "Inputs": Inputs, "Labelled": Labelled}
