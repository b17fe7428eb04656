"""Action distributions, as functions of a parameter vector `[..., size]`.

Learning needs gradients, so `evaluate` takes tensors. Acting needs speed and its own random generator, so `sample` and
`mode` take numpy arrays; both return actions and their float32 log-probabilities. Actions have the shape of the
environment's actions; discrete ones count from 0, and `env_actions` adds the start of the space.
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
    """An action distribution. `size`: number of parameters. `features`: length of the vectors that `encode` returns."""

    size: int
    features: int

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of `actions` `[..., *action]` and the entropy, both `[...]`, with gradients."""

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample actions for `params` `[B, size]`; return them and their log-probabilities `[B]`."""

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the most probable actions and their log-probabilities."""

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions `[..., *action]` as vectors `[..., features]`, for networks that read the last action."""


@runtime_checkable
class Explores(Protocol):
    """A distribution whose exploration the actor can set."""

    def explore(self, amount: float | Array) -> None:
        """Set the amount of exploration: a number for all environments, or `[B]`, one per environment."""


class StochasticPolicy(Distribution, Protocol):
    """A distribution with a known KL divergence between two of its parameter vectors."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) `[...]` of parameters `[..., size]`, in nats; twice differentiable."""


_FEW = 8
"""Up to this many logits, Python numbers are faster than arrays: after a wait numpy's functions are out of the cache,
and calling a dozen of them takes longer than the arithmetic."""


class Categorical:
    """One choice among `n` actions, numbered from 0. The parameters are logits."""

    def __init__(self, n: int) -> None:
        self.size = self.features = n

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy."""
        logp, entropy = _Choice.apply(params, actions)  # type: ignore[no-untyped-call]
        return logp, entropy

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) of two logit vectors."""
        before = old.log_softmax(-1)
        return (before.exp() * (before - new.log_softmax(-1))).sum(-1)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample actions by inverting the cumulative probabilities."""
        if params.size <= _FEW:
            return _choose(params, rng)
        shifted, shares, total = _softmax(params)
        # The action whose interval of [0, total) contains the point; an interval of width zero contains none.
        point = rng.random(len(params)) * total
        ends = shares[:1] if self.size == 2 else np.add.accumulate(shares[:-1])
        action = np.add.reduce(point >= ends, 0)
        return action, _pick(shifted, action) - np.log(total)

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the actions with the highest logits."""
        shifted, _, total = _softmax(params)
        action = params.argmax(-1)
        return action, _pick(shifted, action) - np.log(total)

    def encode(self, actions: Tensor) -> Tensor:
        """Return one-hot vectors."""
        return F.one_hot(actions, self.features).float()


class _Choice(torch.autograd.Function):
    """Log-probability of the chosen action and entropy, forward and backward in numpy: one node instead of a dozen.

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
    """Do the same as `Categorical.sample`, in plain Python."""
    actions, logps = [], []
    for row in params.tolist():
        highest = max(row)
        shares = [math.exp(logit - highest) for logit in row]
        total = sum(shares)
        point, action, end = rng.random() * total, 0, shares[0]
        while point >= end and action + 1 < len(row):
            action += 1
            end += shares[action]
        actions.append(action)
        logps.append(row[action] - highest - math.log(total))
    return np.array(actions, np.int64), np.array(logps, params.dtype)


def _softmax(params: Array) -> tuple[Array, Array, Array]:
    """Return `params` `[B, n]` minus their maximum, its exponentials, both `[n, B]`, and the sum of these, `[B]`.

    The results are transposed, because numpy is slow to reduce a short last axis.
    """
    shifted = params.T.copy()
    shifted -= np.maximum.reduce(shifted, 0)
    shares = np.exp(shifted)
    return shifted, shares, np.add.reduce(shares, 0)


def _pick(columns: Array, index: Array) -> Array:
    """Return `columns[index[b], b]` for each b. `columns`: `[n, B]`, `index`: `[B]`."""
    picked: Array = columns.reshape(-1)[index * len(index) + np.arange(len(index))]
    return picked


class MultiCategorical:
    """Independent choices, one per part of a MultiDiscrete action. The parameters are all logits, concatenated."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        sizes = space.nvec.ravel().tolist()
        self._parts = [Categorical(n) for n in sizes]
        self._sizes = sizes
        self._bounds = np.cumsum(sizes)[:-1]
        self._shape = space.shape
        self.size = self.features = sum(sizes)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy, summed over the parts."""
        columns = zip(self._parts, torch.split(params, self._sizes, -1), self._columns(actions), strict=True)
        logps, entropies = zip(*(part.evaluate(logits, column) for part, logits, column in columns), strict=True)
        return torch.stack(logps).sum(0), torch.stack(entropies).sum(0)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new), summed over the parts."""
        logits = zip(self._parts, torch.split(old, self._sizes, -1), torch.split(new, self._sizes, -1), strict=True)
        return torch.stack([part.kl(before, after) for part, before, after in logits]).sum(0)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample each part."""
        return self._join([part.sample(logits, rng) for part, logits in self._split(params)])

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the mode of each part."""
        return self._join([part.mode(logits) for part, logits in self._split(params)])

    def encode(self, actions: Tensor) -> Tensor:
        """Return the concatenated one-hot vectors of the parts."""
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
    """Base of Gaussian policies with a diagonal covariance. The parameters are the means, then the log-stds.

    Subclasses implement `evaluate`, and `_act`, which turns standard normal noise into actions.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._shape = space.shape
        self.features = int(np.prod(space.shape))
        self.size = 2 * self.features

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample actions with normal noise."""
        return self._act(params, rng.standard_normal((len(params), self.features), np.float32))

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the actions without noise."""
        return self._act(params, np.zeros((len(params), self.features), np.float32))

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions as float vectors."""
        return as_vectors(actions, self._shape).float()

    def _act(self, params: Array, noise: Array) -> tuple[Array, Array]:
        raise NotImplementedError


class DiagGaussian(Gaussian):
    """A Gaussian policy without squashing.

    Actions are not clipped here: the log-probability belongs to the unclipped action, and `Environments` clips actions
    to the bounds of the space.
    """

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy."""
        mean, log_std = params.chunk(2, -1)
        z = (self.encode(actions) - mean) * (-log_std).exp()
        spread = log_std.sum(-1)
        logp = -0.5 * (z * z).sum(-1) - spread - self.features * HALF_LOG_2PI
        return logp, spread + self.features * (0.5 + HALF_LOG_2PI)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new): per dimension log(s' / s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2; m', s' are new."""
        (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        spread = (2.0 * log_std).exp() + (mean - new_mean) ** 2
        return (new_log_std - log_std + 0.5 * spread * (-2.0 * new_log_std).exp() - 0.5).sum(-1)

    def _act(self, params: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(params, 2, -1)
        actions = mean + np.exp(log_std) * noise
        logp = -0.5 * (noise * noise).sum(-1) - log_std.sum(-1) - np.float32(self.features * HALF_LOG_2PI)
        return actions.reshape(-1, *self._shape), logp


class EpsilonGreedy:
    """Epsilon-greedy choice among `n` actions. The parameters are Q-values.

    The action is the best one, or with probability `epsilon` a uniformly random one. `epsilon`: a number, or `[B]`, one
    per environment; the actor sets it.
    """

    def __init__(self, n: int) -> None:
        self.size = self.features = n
        self.epsilon: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        """Set epsilon."""
        self.epsilon = amount

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy of the epsilon-greedy choice."""
        epsilon = torch.as_tensor(self.epsilon, dtype=params.dtype)[..., None]
        chances = F.one_hot(params.argmax(-1), self.size) * (1.0 - epsilon) + epsilon / self.size
        return chances.gather(-1, actions.unsqueeze(-1)).squeeze(-1).log(), torch.special.entr(chances).sum(-1)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample epsilon-greedy actions."""
        best = params.argmax(-1)
        # Always draw both numbers, so that later random numbers do not depend on earlier choices.
        explores = rng.random(len(params)) < self.epsilon
        actions = np.where(explores, rng.integers(0, self.size, len(params)), best)
        chances = self.epsilon / self.size + (actions == best) * (1.0 - np.asarray(self.epsilon))
        return actions, np.log(chances, dtype=np.float32)

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the greedy actions, with log-probability 0."""
        return params.argmax(-1), np.zeros(len(params), np.float32)

    def encode(self, actions: Tensor) -> Tensor:
        """Return one-hot vectors."""
        return F.one_hot(actions, self.features).float()


def as_vectors(actions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return actions `[..., *shape]` as `[..., n]`; a scalar action becomes a vector of one number."""
    return actions.flatten(actions.dim() - len(shape)) if shape else actions.unsqueeze(-1)


class NoDensity:
    """Base of distributions whose actions have no density."""

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return zeros as log-probabilities and entropy."""
        nothing = torch.zeros(params.shape[:-1])
        return nothing, nothing


def count_actions(space: spaces.Space[Any]) -> int:
    """Return the number of actions of a Discrete space; refuse other spaces."""
    if not isinstance(space, spaces.Discrete):
        raise ThespisError(
            f"Q-values need Discrete actions, but the environment has {space}; "
            "choose another architecture, such as impala, or wrap the environment"
        )
    return int(space.n)


def build_distribution(space: spaces.Space[Any]) -> StochasticPolicy:
    """Return the distribution of an action space: Discrete, MultiDiscrete, or a Box of floats."""
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
