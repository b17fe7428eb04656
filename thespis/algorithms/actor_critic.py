"""The IMPALA update: V-trace policy gradient, value regression and an entropy bonus, from unrolls to gradients."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.rewards import ReturnScale, shape_rewards
from thespis.algorithms.vtrace import Clips, VTrace, vtrace
from thespis.errors import NonFiniteLoss
from thespis.networks.acting import export_weights, load_weights
from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors, tensor_inputs
from thespis.networks.policies import ActorCritic, Output, PolicyNetwork, final_values
from thespis.types import Array, Unroll, map_tree

_LARGEST_REWARD = 10.0
"""Bound of normalised rewards: before many returns were seen, their spread says little."""


class RewardSettings(Protocol):
    """How rewards are shaped; see `shape_rewards`."""

    @property
    def kind(self) -> str: ...
    @property
    def scale(self) -> float: ...


class UpdateSettings(Protocol):
    """What `VTraceUpdate` reads. `reduction`: sum (as in the paper) or mean over valid rows.

    `correction` off treats every action as the current policy's own, which is A2C on stale data.
    """

    @property
    def discount(self) -> float: ...
    @property
    def entropy_cost(self) -> float: ...
    @property
    def value_cost(self) -> float: ...
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
    @property
    def reward(self) -> RewardSettings: ...


class VTraceUpdate:
    """Turns unrolls into gradients of the network it holds; applying them is somebody else's step."""

    def __init__(self, network: PolicyNetwork, cfg: UpdateSettings) -> None:
        self.network = network
        self.parameters = list(network.parameters())
        self._cfg = cfg
        self._return_scale = ReturnScale()
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
            seeds = (-pull, weight * -cfg.entropy_cost, error * cfg.value_cost)
            losses = torch.stack(
                (
                    -_dot(pull, logp),
                    0.5 * _dot(error, values - traced.targets),
                    _dot(weight, entropy),
                )
            )
        policy_loss, value_loss, bonus = losses.tolist()
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * bonus
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss} (policy {policy_loss}, value {value_loss}, entropy {bonus})")
        outputs = (logp, entropy, values)
        gradients = torch.autograd.grad(outputs, self.parameters, seeds, materialize_grads=True)
        metrics: dict[str, float] = {}
        if want_metrics:
            named = ("train/loss", "train/policy_loss", "train/value_loss", "train/entropy")
            metrics = dict(zip(named, (loss, policy_loss, value_loss, bonus), strict=True))
            metrics |= _metrics(log_ratio[valid], values.detach()[valid], traced.targets[valid])
        return list(gradients), metrics

    def observe(self, batch: Unroll) -> None:
        """Let a network that normalises observations see the batch; call it once per batch, after the gradients."""
        if isinstance(self.network, ActorCritic):
            self.network.observe(as_tensors(map_tree(lambda leaf: leaf[:-1], batch.inputs.obs)))

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters and buffers, by name."""
        return export_weights(self.network)

    def load(self, weights: dict[str, Array]) -> None:
        load_weights(self.network, weights)

    def state(self) -> dict[str, Array]:
        """What must be saved beside the weights: the statistics that rewards are normalised by."""
        return self._return_scale.export_state()

    def restore(self, arrays: dict[str, Array]) -> None:
        self._return_scale.restore_state(arrays)

    def _rewards(self, batch: Unroll) -> Tensor:
        rewards = as_tensor(batch.rewards)
        if batch.returns is not None:
            self._return_scale.update(batch.returns, np.asarray(batch.valid))
            rewards = (rewards * self._return_scale.scale).clamp(-_LARGEST_REWARD, _LARGEST_REWARD)
        return shape_rewards(rewards, self._cfg.reward.kind, self._cfg.reward.scale)

    @torch.no_grad()
    def _targets(self, batch: Unroll, output: Output, log_ratio: Tensor, valid: Tensor) -> VTrace:
        cfg = self._cfg
        values = output.values.detach()
        next_values = values[1:]
        if len(batch.final_index):
            times, environments = as_tensor(batch.final_index).unbind(1)
            next_values = next_values.clone()
            final = _final_inputs(batch, times, environments)
            next_values[times, environments] = final_values(self.network, output, final, (times, environments))
        terminated = as_tensor(batch.terminated)
        return vtrace(
            values[:-1],
            next_values,
            self._rewards(batch),
            (~terminated).to(values.dtype) * cfg.discount,
            terminated | as_tensor(batch.truncated),
            log_ratio if cfg.correction else torch.zeros_like(log_ratio),
            valid,
            self._clips,
        )


def _final_inputs(batch: Unroll, times: Tensor, environments: Tensor) -> TensorInputs:
    """The inputs `[1, K]` that the policy would have been given had the episodes gone on."""
    obs = as_tensors(map_tree(lambda leaf: leaf[None], batch.final_obs))
    last_action = as_tensor(batch.actions)[times, environments][None]
    last_reward = as_tensor(batch.rewards)[times, environments][None]
    return TensorInputs(obs, torch.zeros(1, len(times), dtype=torch.bool), last_action, last_reward)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.reshape(-1), right.reshape(-1))


def _metrics(log_ratio: Tensor, values: Tensor, targets: Tensor) -> dict[str, float]:
    """How well corrections and values do on one batch, over its valid rows `[N]`; one transfer for all of them."""
    ratio = log_ratio.exp()
    errors = (targets - values).var(correction=0)
    explained = 1.0 - errors / targets.var(correction=0).clamp(min=1e-8)
    scalars = torch.stack((ratio.mean(), (ratio > 1.0).float().mean(), explained, values.mean()))
    names = ("ratio_mean", "ratio_clipped", "explained_variance", "value_mean")
    return {f"train/{name}": value for name, value in zip(names, scalars.tolist(), strict=True)}
