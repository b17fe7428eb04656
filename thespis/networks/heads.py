"""Action distributions, as functions of a parameter vector `[..., size]`.

Learning needs gradients, so `evaluate` takes tensors. Acting needs speed and its own random stream, so `sample`
and `mode` take numpy; both return the actions and their float32 log-probabilities, from the same numbers.
Actions are in the environment's own numbering and shape.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from thespis.core.errors import ThespisError
from thespis.core.types import Array

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """What a policy's parameters mean. `size`: how many parameters; `features`: length of `encode`'s vectors."""

    size: int
    features: int

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of `actions` `[..., *action]`, and entropy, both `[...]`, with gradients."""

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions drawn for `params` `[B, size]`, and their log-probabilities `[B]`."""

    def mode(self, params: Array) -> tuple[Array, Array]:
        """The likeliest actions, and their log-probabilities."""

    def encode(self, actions: Tensor) -> Tensor:
        """Actions `[..., *action]` as float vectors `[..., features]`, for networks that read their last action."""


@runtime_checkable
class Explores(Protocol):
    """A distribution that explores as much as whoever acts sets it to."""

    def explore(self, amount: float | Array) -> None:
        """Set the amount, for all environments or, as `[B]`, for each."""


class StochasticPolicy(Distribution, Protocol):
    """A distribution whose distance from another one of its kind is known."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) `[...]`, in nats, of parameters `[..., size]`; can be differentiated twice."""


_FEW = 8
"""Logits up to which Python's own numbers are faster than arrays: a process that has slept for a while finds a dozen
functions of numpy cold, which takes it longer than all the sums."""


class Categorical:
    """One choice among `n`, numbered from 0; parameters are logits. Whoever steps the environment adds its start."""

    def __init__(self, n: int) -> None:
        self.size = self.features = n

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logp, entropy = _Choice.apply(params, actions)  # type: ignore[no-untyped-call]
        return logp, entropy

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        before = old.log_softmax(-1)
        return (before.exp() * (before - new.log_softmax(-1))).sum(-1)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        if params.size <= _FEW:
            return _choose(params, rng)
        shifted, shares, total = _softmax(params)
        # The first share that reaches beyond a point of [0, total); one of width zero is never reached into.
        point = rng.random(len(params)) * total
        reaches = shares[:1] if self.size == 2 else np.add.accumulate(shares[:-1])
        action = np.add.reduce(point >= reaches, 0)
        return action, _pick(shifted, action) - np.log(total)

    def mode(self, params: Array) -> tuple[Array, Array]:
        shifted, _, total = _softmax(params)
        action = params.argmax(-1)
        return action, _pick(shifted, action) - np.log(total)

    def encode(self, actions: Tensor) -> Tensor:
        return F.one_hot(actions, self.features).float()


class _Choice(torch.autograd.Function):
    """Log-probability of what was chosen, and entropy, forth and back by numpy: one node for a dozen of torch's.

    With L the log-probabilities, p = exp L and H the entropy: dlogp/dparams = [chosen] - p, dH/dparams = -p (L + H).
    """

    @staticmethod
    def forward(ctx: Any, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        shifted, shares, total = _softmax(params.detach().numpy().reshape(-1, params.shape[-1]))
        chosen = actions.numpy().reshape(-1)
        shifted -= np.log(total)
        shares /= total
        entropy = -np.add.reduce(shares * shifted, 0)
        ctx.found, ctx.shape = (shifted, shares, entropy, chosen), params.shape
        shape = params.shape[:-1]
        return torch.from_numpy(_pick(shifted, chosen)).view(shape), torch.from_numpy(entropy).view(shape)

    @staticmethod
    def backward(ctx: Any, logp: Tensor, entropy: Tensor) -> tuple[Tensor, None]:
        logs, shares, entropies, chosen = ctx.found
        pull, spread = logp.reshape(-1).numpy(), entropy.reshape(-1).numpy()
        gradient = logs + entropies
        gradient *= spread
        gradient += pull
        gradient *= shares
        np.negative(gradient, out=gradient)
        gradient.reshape(-1)[chosen * len(chosen) + np.arange(len(chosen))] += pull
        return torch.from_numpy(gradient.T).view(ctx.shape), None


def _choose(params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """What `Categorical.sample` does with arrays, number by number."""
    actions, logps = [], []
    for row in params.tolist():
        highest = max(row)
        shares = [math.exp(logit - highest) for logit in row]
        total = sum(shares)
        point, action, reached = rng.random() * total, 0, shares[0]
        while point >= reached and action + 1 < len(row):
            action += 1
            reached += shares[action]
        actions.append(action)
        logps.append(row[action] - highest - math.log(total))
    return np.array(actions, np.int64), np.array(logps, params.dtype)


def _softmax(params: Array) -> tuple[Array, Array, Array]:
    """`params` `[B, n]` less their maximum, the exponentials of that, both `[n, B]`, and the sum of these, `[B]`.

    By columns, because numpy is slow where the axis that it reduces is short and the last.
    """
    shifted = params.T.copy()
    shifted -= np.maximum.reduce(shifted, 0)
    shares = np.exp(shifted)
    return shifted, shares, np.add.reduce(shares, 0)


def _pick(columns: Array, index: Array) -> Array:
    """Of each row of `columns` `[n, B]` the number at `index` `[B]`."""
    picked: Array = columns.reshape(-1)[index * len(index) + np.arange(len(index))]
    return picked


class MultiCategorical:
    """Independent choices, one per part; their logits stand side by side."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        sizes = space.nvec.ravel().tolist()
        self._parts = [Categorical(n) for n in sizes]
        self._sizes = sizes
        self._bounds = np.cumsum(sizes)[:-1]
        self._shape = space.shape
        self.size = self.features = sum(sizes)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        columns = zip(self._parts, torch.split(params, self._sizes, -1), self._columns(actions), strict=True)
        logps, entropies = zip(*(part.evaluate(logits, column) for part, logits, column in columns), strict=True)
        return torch.stack(logps).sum(0), torch.stack(entropies).sum(0)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        logits = zip(self._parts, torch.split(old, self._sizes, -1), torch.split(new, self._sizes, -1), strict=True)
        return torch.stack([part.kl(before, after) for part, before, after in logits]).sum(0)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return self._join([part.sample(logits, rng) for part, logits in self._split(params)])

    def mode(self, params: Array) -> tuple[Array, Array]:
        return self._join([part.mode(logits) for part, logits in self._split(params)])

    def encode(self, actions: Tensor) -> Tensor:
        columns = zip(self._parts, self._columns(actions), strict=True)
        return torch.cat([part.encode(column) for part, column in columns], -1)

    def _columns(self, actions: Tensor) -> tuple[Tensor, ...]:
        return as_vectors(actions, self._shape).unbind(-1)

    def _split(self, params: Array) -> list[tuple[Categorical, Array]]:
        return list(zip(self._parts, np.split(params, self._bounds, -1), strict=True))

    def _join(self, drawn: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        actions = np.stack([action for action, _ in drawn], -1).reshape(-1, *self._shape)
        return actions, np.stack([logp for _, logp in drawn]).sum(0)


class Gaussian:
    """Base of policies made of independent normals; parameters are the means, then the logs of the deviations.

    Subclasses implement `evaluate`, and `_act` for actions made of standard normal noise.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._shape = space.shape
        self.features = int(np.prod(space.shape))
        self.size = 2 * self.features

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return self._act(params, rng.standard_normal((len(params), self.features), np.float32))

    def mode(self, params: Array) -> tuple[Array, Array]:
        return self._act(params, np.zeros((len(params), self.features), np.float32))

    def encode(self, actions: Tensor) -> Tensor:
        return as_vectors(actions, self._shape).float()

    def _act(self, params: Array, noise: Array) -> tuple[Array, Array]:
        raise NotImplementedError


class DiagGaussian(Gaussian):
    """Actions are the normals themselves.

    They are not clipped here: the log-probability is that of the action as drawn, and whoever steps the environment
    clips to its bounds.
    """

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.chunk(2, -1)
        z = (self.encode(actions) - mean) * (-log_std).exp()
        spread = log_std.sum(-1)
        logp = -0.5 * (z * z).sum(-1) - spread - self.features * HALF_LOG_2PI
        return logp, spread + self.features * (0.5 + HALF_LOG_2PI)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Per dimension: log(s' / s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2, with m', s' the new ones."""
        (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        spread = (2.0 * log_std).exp() + (mean - new_mean) ** 2
        return (new_log_std - log_std + 0.5 * spread * (-2.0 * new_log_std).exp() - 0.5).sum(-1)

    def _act(self, params: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(params, 2, -1)
        actions = mean + np.exp(log_std) * noise
        logp = -0.5 * (noise * noise).sum(-1) - log_std.sum(-1) - np.float32(self.features * HALF_LOG_2PI)
        return actions.reshape(-1, *self._shape), logp


class EpsilonGreedy:
    """One choice among `n`; parameters are action values. The best one, but with probability `epsilon` any.

    `epsilon`: a number, or `[B]` for environments that explore differently. Whoever acts sets it.
    """

    def __init__(self, n: int) -> None:
        self.size = self.features = n
        self.epsilon: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        self.epsilon = amount

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        epsilon = torch.as_tensor(self.epsilon, dtype=params.dtype)[..., None]
        chances = F.one_hot(params.argmax(-1), self.size) * (1.0 - epsilon) + epsilon / self.size
        return chances.gather(-1, actions.unsqueeze(-1)).squeeze(-1).log(), torch.special.entr(chances).sum(-1)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        best = params.argmax(-1)
        # Both numbers are always drawn: what a stream holds later does not depend on what was chosen before.
        explores = rng.random(len(params)) < self.epsilon
        actions = np.where(explores, rng.integers(0, self.size, len(params)), best)
        chances = self.epsilon / self.size + (actions == best) * (1.0 - np.asarray(self.epsilon))
        return actions, np.log(chances, dtype=np.float32)

    def mode(self, params: Array) -> tuple[Array, Array]:
        return params.argmax(-1), np.zeros(len(params), np.float32)

    def encode(self, actions: Tensor) -> Tensor:
        return F.one_hot(actions, self.features).float()


def as_vectors(actions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Actions `[..., *shape]` as `[..., n]`; a scalar action becomes a vector of one number."""
    return actions.flatten(actions.dim() - len(shape)) if shape else actions.unsqueeze(-1)


def no_density(params: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropy of actions that have no density: zeros, for `params` `[..., size]`."""
    nothing = torch.zeros(params.shape[:-1])
    return nothing, nothing


def count_actions(space: spaces.Space[Any]) -> int:
    """How many actions there are to value; refuses spaces of which nobody can list them."""
    if not isinstance(space, spaces.Discrete):
        raise ThespisError(
            f"values of actions need Discrete actions, but the environment has {space}; "
            "choose another architecture, such as impala, or wrap the environment"
        )
    return int(space.n)


def build_distribution(space: spaces.Space[Any]) -> StochasticPolicy:
    """The distribution for an action space: Discrete, MultiDiscrete, or Box of floats."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagGaussian(space)
    raise ThespisError(
        f"the stock network cannot act in {space}; it acts in Discrete, MultiDiscrete and float Box spaces, "
        "so wrap the environment or pass your own network."
    )
