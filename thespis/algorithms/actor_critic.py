"""The IMPALA update: V-trace policy gradient, value regression and an entropy bonus, from unrolls to gradients."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from thespis.algorithms.policy_update import PolicySettings, PolicyUpdate, dot, explained_variance
from thespis.algorithms.vtrace import Clips, VTrace, vtrace
from thespis.errors import NonFiniteLoss
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.networks.policies import Output, PolicyNetwork
from thespis.types import Unroll


class UpdateSettings(PolicySettings, Protocol):
    """What `VTraceUpdate` reads. `reduction`: sum (as in the paper) or mean over valid rows.

    `correction` off treats every action as the current policy's own, which is A2C on stale data.
    """

    @property
    def reduction(self) -> str: ...
    @property
    def correction(self) -> bool: ...
    @property
    def rho_bar(self) -> float | None: ...
    @property
    def c_bar(self) -> float | None: ...
    @property
    def pg_rho_bar(self) -> float | None: ...
    @property
    def trace_decay(self) -> float: ...


class VTraceUpdate(PolicyUpdate[UpdateSettings]):
    """Turns unrolls into gradients of the network it holds; applying them is somebody else's step."""

    def __init__(self, network: PolicyNetwork, cfg: UpdateSettings) -> None:
        super().__init__(network, cfg)
        self._clips = Clips(cfg.rho_bar, cfg.c_bar, cfg.pg_rho_bar, cfg.trace_decay)

    def gradients(self, batch: Unroll, want_metrics: bool = False) -> tuple[list[Tensor], dict[str, float]]:
        """Gradients in the order of `parameters`, and metrics by name (empty unless wanted)."""
        cfg = self._cfg
        output = self.network.forward(tensor_inputs(batch.inputs), tuple(as_tensor(part) for part in batch.state))
        actions, valid = as_tensor(batch.actions), as_tensor(batch.valid)
        logp, entropy = self.network.distribution.evaluate(output.params[:-1], actions)
        values = output.values[:-1]
        log_ratio = logp.detach() - as_tensor(batch.behaviour_logp)
        traced = self._targets(batch, output, log_ratio, valid)

        with torch.no_grad():
            weight = valid.to(values.dtype)
            if cfg.reduction == "mean":
                weight /= weight.sum().clamp(min=1.0)
            # dL/dlogp, dL/dentropy and dL/dV of the loss below. Starting autograd from these instead of from the
            # scalar spares it a dozen small nodes: 7% of the time for 16 x 32 rows of a 64-64 network.
            pull = traced.advantages * weight
            error = (values - traced.targets).mul_(weight)
            slopes = (-pull, weight * -cfg.entropy_cost, error * cfg.value_cost)
            losses = torch.stack(
                (
                    -dot(pull, logp),
                    0.5 * dot(error, values - traced.targets),
                    dot(weight, entropy),
                )
            )
        policy_loss, value_loss, bonus = losses.tolist()
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * bonus
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss} (policy {policy_loss}, value {value_loss}, entropy {bonus})")
        gradients = self._descent((logp, entropy, values), slopes)
        metrics: dict[str, float] = {}
        if want_metrics:
            named = ("train/loss", "train/policy_loss", "train/value_loss", "train/entropy")
            metrics = dict(zip(named, (loss, policy_loss, value_loss, bonus), strict=True))
            metrics |= _metrics(log_ratio[valid], values.detach()[valid], traced.targets[valid])
        return gradients, metrics

    @torch.no_grad()
    def _targets(self, batch: Unroll, output: Output, log_ratio: Tensor, valid: Tensor) -> VTrace:
        cfg = self._cfg
        values = output.values.detach()
        terminated = as_tensor(batch.terminated)
        return vtrace(
            values[:-1],
            self._next_values(batch, output),
            self._rewards(batch),
            (~terminated).to(values.dtype) * cfg.discount,
            terminated | as_tensor(batch.truncated),
            log_ratio if cfg.correction else torch.zeros_like(log_ratio),
            valid,
            self._clips,
        )


def _metrics(log_ratio: Tensor, values: Tensor, targets: Tensor) -> dict[str, float]:
    """How well corrections and values do on one batch, over its valid rows `[N]`; one transfer for all of them."""
    ratio = log_ratio.exp()
    explained = explained_variance(values, targets)
    scalars = torch.stack((ratio.mean(), (ratio > 1.0).float().mean(), explained, values.mean()))
    names = ("ratio_mean", "ratio_clipped", "explained_variance", "value_mean")
    return {f"train/{name}": value for name, value in zip(names, scalars.tolist(), strict=True)}
