"""The APPO update: PPO's clipped loss on V-trace advantages."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from thespis.algorithms.appo import APPO
from thespis.algorithms.updates.minibatch import explained_variance
from thespis.algorithms.updates.policy_gradient import (
    PolicyTerms,
    PolicyUpdate,
    loss_metrics,
    mean_weights,
    policy_terms,
)
from thespis.algorithms.updates.ppo import clipped_surrogate, normalised
from thespis.algorithms.updates.update import Gradients
from thespis.algorithms.updates.vtrace_targets import Clips, VTraceReturns, vtrace
from thespis.core.types import Unroll
from thespis.networks.inputs import as_tensor
from thespis.networks.policies import PolicyNetwork


def appo_loss(
    ratio: Tensor, entropy: Tensor, values: Tensor, traced: VTraceReturns, weight: Tensor, cfg: APPO
) -> tuple[PolicyTerms, tuple[Tensor, Tensor, Tensor]]:
    """Clipped surrogate, value error and entropy bonus, and the derivatives of the total loss. All tensors `[T, B]`.

    With mu the behaviour policy, ratio = pi(a|x) / mu(a|x), and v the V-trace targets:

        A_t  = r_t + discount_t * v_{t+1} - V(x_t)
        loss = mean(-min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A)
                    + value_cost * (V - v)^2 / 2 - entropy_cost * entropy)

    V-trace multiplies A_t by min(pg_rho_bar, ratio), because its loss is -A_t log pi. The surrogate already contains
    the ratio: its gradient is ratio * A_t * grad log pi, so another factor would correct twice. The clip bounds this
    ratio in the direction of the advantage. In v, `rho_bar` and `c_bar` still truncate ratios to bound the variance.
    The derivatives are with respect to log pi, entropy and values; they are cheaper than autograd.
    """
    advantages = normalised(traced.advantages, weight) if cfg.normalize_advantages else traced.advantages
    objective, pull = clipped_surrogate(ratio, advantages, cfg.clip)
    error = values - traced.targets
    slopes = (pull * -weight, weight * -cfg.entropy_cost, error * weight * cfg.value_cost)
    return policy_terms(objective, 0.5 * error * error, entropy, weight), slopes


class APPOUpdate(PolicyUpdate):
    """The APPO update: one gradient step per batch of unrolls, which may be of older policies."""

    minibatches: ClassVar[None] = None

    def __init__(self, network: PolicyNetwork, cfg: APPO) -> None:
        super().__init__(network, cfg.discount, cfg.reward)
        self._cfg = cfg
        self._clips = Clips(cfg.rho_bar, cfg.c_bar, lambda_=cfg.trace_decay, weighted=False)

    def gradients(self, batch: Unroll, want_metrics: bool = False) -> Gradients:
        """Gradients of `appo_loss`."""
        cfg = self._cfg
        output, valid = self.forward(batch), as_tensor(batch.valid)
        logp, entropy = self.network.distribution.evaluate(output.params[:-1], as_tensor(batch.actions))
        values = output.values[:-1]
        with torch.no_grad():
            log_ratio = (logp - as_tensor(batch.behaviour_logp)).masked_fill_(~valid, 0.0)
            traced = vtrace(*self.outcomes(batch, output), log_ratio, valid, self._clips)
            weight = mean_weights(valid, values.dtype)
            found, slopes = appo_loss(log_ratio.exp(), entropy, values, traced, weight, cfg)
            metrics = loss_metrics(torch.stack(found).tolist(), cfg.value_cost, cfg.entropy_cost)
        gradients = self.descent((logp, entropy, values), slopes)
        if not want_metrics:
            return Gradients(gradients, {})
        metrics |= _metrics(log_ratio[valid], values.detach()[valid], traced.targets[valid], cfg.clip)
        return Gradients(gradients, metrics)


def _metrics(log_ratio: Tensor, values: Tensor, targets: Tensor, clip: float) -> dict[str, float]:
    """Distance of the policy from the behaviour policy, and quality of the values, over valid rows `[N]`."""
    ratio = log_ratio.exp()
    outside = ((ratio - 1.0).abs() > clip).float().mean()
    # An unbiased, non-negative estimate of the KL divergence: the mean of ratio - 1 - log ratio.
    kl = (ratio - 1.0 - log_ratio).mean()
    scalars = torch.stack((ratio.mean(), outside, kl, explained_variance(values, targets)))
    names = ("ratio_mean", "clip_fraction", "approx_kl", "explained_variance")
    return {f"train/{name}": value for name, value in zip(names, scalars.tolist(), strict=True)}
