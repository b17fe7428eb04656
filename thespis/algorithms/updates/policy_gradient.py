"""What updates of a policy-and-value network from unrolls have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.updates.gae import gae
from thespis.algorithms.updates.minibatch import Minibatch
from thespis.algorithms.updates.rewards import ReturnScale, shape_rewards
from thespis.core.config import RewardConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Unroll, map_tree
from thespis.networks.acting import copy_weights, weight_views
from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors, tensor_inputs
from thespis.networks.policies import Agent, Output, PolicyNetwork, final_values

_LARGEST_REWARD = 10.0
"""Bound of normalised rewards: before many returns were seen, their spread says little."""

Number = TypeVar("Number", float, Tensor)


class Outcomes(NamedTuple):
    """What each step led to, all `[T, B]`: the first arguments of `gae` and of `vtrace`, which say what they mean."""

    v_tm1: Tensor
    v_t: Tensor
    r_t: Tensor
    discount_t: Tensor
    cut_t: Tensor


class PolicyUpdate:
    """Base of policy-gradient updates: reward shaping and bootstrap values. Subclasses implement `gradients`."""

    def __init__(self, network: PolicyNetwork, discount: float, reward: RewardConfig) -> None:
        self.network = network
        self.parameters = list(network.parameters())
        self._views = weight_views(network)
        self._discount, self._reward = discount, reward
        self._return_scale = ReturnScale()
        self._normalizes = isinstance(network, Agent) and network.encoder.normalizes

    def observe(self, batch: Unroll) -> None:
        """Let a network that normalises observations see the batch; call it once per batch, after the gradients."""
        if self._normalizes:
            assert isinstance(self.network, Agent)
            self.network.observe(as_tensors(map_tree(lambda leaf: leaf[:-1], batch.inputs.obs)))

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters and buffers, by name."""
        return {name: view.copy() for name, view in self._views.items()}

    def load(self, weights: dict[str, Array]) -> None:
        copy_weights(weights, self._views)

    def state(self) -> dict[str, Array]:
        """What must be saved beside the weights: the statistics that rewards are normalised by."""
        return self._return_scale.export_state()

    def restore(self, arrays: dict[str, Array]) -> None:
        self._return_scale.restore_state(arrays)

    def descent(self, outputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of all parameters, in their order, of a loss of which the `slopes` along `outputs` are known."""
        loss: Tensor = _Loss.apply(slopes, *outputs)  # type: ignore[no-untyped-call]
        return list(torch.autograd.grad(loss, self.parameters, materialize_grads=True))

    def rewards(self, batch: Unroll) -> Tensor:
        """Rewards `[T, B]` as they are learned from. Call it once per batch: it moves the running statistics."""
        rewards = as_tensor(batch.rewards)
        if batch.returns is not None:
            self._return_scale.update(batch.returns, np.asarray(batch.valid))
            rewards = (rewards * self._return_scale.scale).clamp(-_LARGEST_REWARD, _LARGEST_REWARD)
        return shape_rewards(rewards, self._reward.kind, self._reward.scale)

    def forward(self, batch: Unroll) -> Output:
        """The network's output `[T + 1, B]` at all inputs of the batch, with gradients."""
        return self.network.forward(*_network_inputs(batch))

    @torch.no_grad()
    def outcomes(self, batch: Unroll, output: Output) -> Outcomes:
        """What returns are estimated from, constants. Call it once per batch, as `rewards`; `output`: of `forward`."""
        values, terminated = output.values.detach(), as_tensor(batch.terminated)
        return Outcomes(
            values[:-1],
            self.next_values(batch, output),
            self.rewards(batch),
            (~terminated).to(values.dtype) * self._discount,
            terminated | as_tensor(batch.truncated),
        )

    @torch.no_grad()
    def _with_advantages(self, batch: Unroll, gae_lambda: float) -> Minibatch:
        """The whole batch as one minibatch, with advantages by the values before the update.

        Rows of a recurrent network stay in their order; those of any other are laid side by side.
        """
        inputs, state = _network_inputs(batch)
        output = self.network.forward(inputs, state)
        values, valid = output.values[:-1], as_tensor(batch.valid)
        advantages = gae(*self.outcomes(batch, output), gae_lambda, valid)
        steps = TensorInputs(
            map_tree(lambda leaf: leaf[:-1], inputs.obs),
            inputs.first[:-1],
            inputs.last_action[:-1],
            inputs.last_reward[:-1],
        )
        actions, old_logp = as_tensor(batch.actions), as_tensor(batch.behaviour_logp)
        whole = Minibatch(steps, state, actions, old_logp, values, advantages, values + advantages, valid)
        return whole if state else whole.flat()

    def next_values(self, batch: Unroll, output: Output) -> Tensor:
        """Values `[T, B]` of what each step really led to. Call it without gradients; `output`: of `batch.inputs`."""
        values = output.values.detach()[1:]
        if not len(batch.final_index):
            return values
        times, environments = as_tensor(batch.final_index).unbind(1)
        values = values.clone()
        final = _final_inputs(batch, times, environments)
        values[times, environments] = final_values(self.network, output, final, (times, environments))
        return values


class PolicyTerms(NamedTuple):
    """The three terms of an actor-critic loss, scalars; `total` is the loss."""

    policy: Tensor
    value: Tensor
    entropy: Tensor


def policy_terms(objective: Tensor, value_error: Tensor, entropy: Tensor, weight: Tensor) -> PolicyTerms:
    """The weighted sums over rows, all `[T, B]`; `objective` is to rise, so its term is negative."""
    return PolicyTerms(-dot(weight, objective), dot(weight, value_error), dot(weight, entropy))


def total(terms: Sequence[Number], value_cost: float, entropy_cost: float) -> Number:
    """policy + value_cost * value - entropy_cost * entropy, of tensors or of floats."""
    policy, value, entropy = terms
    return policy + value_cost * value - entropy_cost * entropy


def loss_metrics(terms: Sequence[float], value_cost: float, entropy_cost: float) -> dict[str, float]:
    """The loss and its three terms as metrics. Raises `NonFiniteLoss` where the loss is NaN or infinite."""
    policy, value, entropy = terms
    loss = total(terms, value_cost, entropy_cost)
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"loss {loss} (policy {policy}, value {value}, entropy {entropy})")
    return {"train/loss": loss, "train/policy_loss": policy, "train/value_loss": value, "train/entropy": entropy}


class _Loss(torch.autograd.Function):
    """Stands for a loss whose value nobody asks for: only its slope along each output.

    `torch.autograd.grad` takes slopes as well, but imports sympy to compare their shapes: a third of a second at the
    first update of each process that learns. This takes 20 us of each.
    """

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slopes


def _network_inputs(batch: Unroll) -> tuple[TensorInputs, tuple[Tensor, ...]]:
    """What the network reads of a batch: its inputs and the recurrent state before them."""
    return tensor_inputs(batch.inputs), tuple(as_tensor(part) for part in batch.state)


def _final_inputs(batch: Unroll, times: Tensor, environments: Tensor) -> TensorInputs:
    """The inputs `[1, K]` that the policy would have been given had the episodes gone on."""
    obs = as_tensors(map_tree(lambda leaf: leaf[None], batch.final_obs))
    last_action = as_tensor(batch.actions)[times, environments][None]
    last_reward = as_tensor(batch.rewards)[times, environments][None]
    return TensorInputs(obs, torch.zeros(1, len(times), dtype=torch.bool), last_action, last_reward)


def mean_weights(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each row in a mean over valid rows, in the shape of `valid`."""
    weight = valid.to(dtype)
    return weight.div_(weight.sum().clamp(min=1.0))


def dot(left: Tensor, right: Tensor) -> Tensor:
    """The sum of the products of all elements."""
    return torch.dot(left.reshape(-1), right.reshape(-1))
