"""The PPO update (Schulman et al., 2017, arXiv:1707.06347): several epochs of clipped steps on one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.ppo import PPO
from thespis.algorithms.updates.minibatch import Minibatch
from thespis.algorithms.updates.policy_gradient import (
    PolicyTerms,
    PolicyUpdate,
    dot,
    loss_metrics,
    mean_weights,
    policy_terms,
)
from thespis.algorithms.updates.update import Gradients
from thespis.core.types import Array, Unroll
from thespis.networks.policies import PolicyNetwork


class PPOUpdate(PolicyUpdate):
    """The PPO update: shuffles a batch into minibatches every epoch and computes gradients of each.

    A learner passes a batch to `minibatches`, and each minibatch to `gradients`. For a recurrent network a minibatch
    holds whole environments, so that rows keep their order; for a feed-forward network it holds single steps.
    """

    def __init__(self, network: PolicyNetwork, cfg: PPO, rng: np.random.Generator) -> None:
        """`rng`: shuffles rows."""
        super().__init__(network, cfg.discount, cfg.reward)
        self._cfg, self._rng = cfg, rng
        self._kl = 0.0
        self._explained = 0.0

    def minibatches(self, batch: Unroll) -> Iterator[tuple[int, Minibatch]]:
        """Yield every minibatch of every epoch with its number of rows. Each epoch contains each row once.

        Stops early if the KL divergence to the behaviour policy exceeded `target_kl` in the previous step.
        """
        cfg, whole = self._cfg, self._with_advantages(batch, self._cfg.gae_lambda)
        if whole.valid.any():
            self._explained = whole.explained_variance()
        self._kl = 0.0
        for _ in range(cfg.epochs):
            for part in whole.shuffled(self._rng, cfg.minibatches):
                if cfg.target_kl is not None and self._kl > cfg.target_kl:
                    return
                yield part.rows, part

    def statistics(self, part: Any) -> Array:
        """Moments of the advantages of a minibatch; those of returns and observations of a whole batch."""
        if not isinstance(part, Minibatch):
            return super().statistics(part)
        advantages = part.advantages[part.valid].double()
        if not len(advantages):
            return np.zeros(3)
        mean = advantages.mean()
        return np.array([len(advantages), mean.item(), (advantages - mean).square().sum().item()])

    def merge(self, part: Any, statistics: Sequence[Array]) -> None:
        """Normalise the advantages of a minibatch by the moments of all learners' minibatches."""
        if not isinstance(part, Minibatch):
            super().merge(part, statistics)
            return
        number, means, squares = np.stack(statistics).T
        total = max(1.0, number.sum())
        mean = (number * means).sum() / total
        variance = (squares + number * (means - mean) ** 2).sum() / total
        part.advantage_moments = float(mean), float(np.sqrt(variance))

    def gradients(self, part: Minibatch, want_metrics: bool = False) -> Gradients:
        """Gradients of `ppo_loss` for one minibatch."""
        cfg = self._cfg
        output = self.network.forward(part.inputs, part.state)
        logp, entropy = self.network.distribution.evaluate(output.params, part.actions)
        values = output.values
        with torch.no_grad():
            weight = mean_weights(part.valid, values.dtype)
            log_ratio = (logp - part.old_logp).masked_fill_(~part.valid, 0.0)
            ratio = log_ratio.exp()
            terms, slopes = ppo_loss(ratio, entropy, values, part, weight, cfg)
            # An unbiased, non-negative estimate of the KL divergence: the mean of ratio - 1 - log ratio.
            kl = dot(weight, (ratio - 1.0).sub_(log_ratio))
            *found, self._kl = torch.stack((*terms, kl)).tolist()
        metrics = loss_metrics(found, cfg.value_cost, cfg.entropy_cost)
        gradients = self.descent((logp, entropy, values), slopes)
        if not want_metrics:
            return Gradients(gradients, {})
        outside = dot(weight, ((ratio - 1.0).abs() > cfg.clip).to(weight.dtype)).item()
        metrics |= {
            "train/approx_kl": self._kl,
            "train/clip_fraction": outside,
            "train/explained_variance": self._explained,
        }
        return Gradients(gradients, metrics)


def ppo_loss(
    ratio: Tensor, entropy: Tensor, values: Tensor, part: Minibatch, weight: Tensor, cfg: PPO
) -> tuple[PolicyTerms, tuple[Tensor, Tensor, Tensor]]:
    """Clipped surrogate, value error and entropy bonus (equation 9), and the derivatives of the total loss.

    `ratio`: `[T, B]`, the probability of each action relative to the behaviour policy. The derivatives are with
    respect to log pi, entropy and values; they are cheaper than autograd.
    """
    objective, pull = clipped_surrogate(ratio, _normalised_advantages(part, weight), cfg.clip)
    error, push = clipped_value_loss(values, part.old_values, part.targets, cfg.value_clip)
    slopes = (pull * -weight, weight * -cfg.entropy_cost, push * weight * cfg.value_cost)
    return policy_terms(objective, error, entropy, weight), slopes


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """min(ratio * A, clip(ratio) * A), and its derivative by log pi, which is 0 where the clip is active."""
    free = ratio * advantages
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantages)
    return torch.minimum(free, bounded), free.masked_fill(bounded < free, 0.0)


def clipped_value_loss(values: Tensor, old: Tensor, targets: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Half the squared error, and its derivative by the values.

    With `clip`, the loss is the larger error of the value and of the value clipped to within `clip` of the old one. A
    value that has moved this far towards its target then has no gradient (OpenAI Baselines; 0 does not clip).
    """
    error = values - targets
    if not clip:
        return 0.5 * error * error, error
    moved = values - old
    # Within the clip, use the value itself: `old + moved` may differ in the last bit and change the comparison below.
    held = torch.where(moved.abs() <= clip, values, moved.clamp_(-clip, clip).add_(old)).sub_(targets)
    square, held_square = error * error, held * held
    return 0.5 * torch.maximum(square, held_square), error.masked_fill(square < held_square, 0.0)


def _normalised_advantages(part: Minibatch, weight: Tensor) -> Tensor:
    if part.advantage_moments is None:
        return normalised(part.advantages, weight)
    mean, deviation = part.advantage_moments
    return (part.advantages - mean) / (deviation + 1e-8)


def normalised(advantages: Tensor, weight: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1. `weight`: the weight of each row; the weights sum to 1."""
    centred = advantages - dot(weight, advantages)
    return centred / (dot(weight, centred * centred).sqrt() + 1e-8)
