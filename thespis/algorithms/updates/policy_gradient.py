"""Shared parts of policy-gradient updates from unrolls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.updates.gae import gae
from thespis.algorithms.updates.minibatch import Minibatch
from thespis.algorithms.updates.rewards import ReturnScale, return_moments, shape_rewards
from thespis.core.config import RewardConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Unroll, map_tree
from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors, tensor_inputs
from thespis.networks.normalize import collect_moments, merge_moments
from thespis.networks.policies import Agent, NetworkOutput, PolicyNetwork, final_values
from thespis.networks.policy_runner import copy_weights, weight_views

_LARGEST_REWARD = 10.0
"""Bound of normalised rewards, because the variance of few returns is unreliable."""

_RETURN_MOMENTS = 3
"""Length of the result of `return_moments`."""

FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)


class Outcomes(NamedTuple):
    """Values, rewards and discounts of each step, all `[T, B]`: the first arguments of `gae` and `vtrace`."""

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
        self._gathered: Sequence[Array] | None = None
        """Statistics of the current batches of all learners; None if there is one learner."""
        self._normalizes = isinstance(network, Agent) and network.encoder.normalizes

    def observe(self, batch: Unroll) -> None:
        """Update the running observation statistics. Call it once per batch, after `gradients`."""
        if self._normalizes and self._gathered is None:
            self._observe(batch)
        elif self._normalizes and self._gathered is not None:
            merge_moments(self.network, [each[_RETURN_MOMENTS:] for each in self._gathered])

    def _observe(self, batch: Unroll) -> None:
        assert isinstance(self.network, Agent)
        self.network.observe(as_tensors(map_tree(lambda leaf: leaf[:-1], batch.inputs.obs)))

    def rows(self, part: Any) -> int:
        """Number of valid rows, of which the loss is a mean."""
        return int(part.valid.sum())

    def statistics(self, part: Any) -> Array:
        """Moments of the returns and of the observations of a batch, as far as they are normalised."""
        if part.returns is None and not self._normalizes:
            return np.empty(0)
        returns = np.zeros(_RETURN_MOMENTS) if part.returns is None else return_moments(part.returns, part.valid)
        observed = collect_moments(self.network, lambda: self._observe(part)) if self._normalizes else np.empty(0)
        return np.concatenate([returns, observed])

    def merge(self, part: Any, statistics: Sequence[Array]) -> None:
        """Use the moments of all learners for the current batch."""
        self._gathered = statistics

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters and buffers, by name."""
        return {name: view.copy() for name, view in self._views.items()}

    def load(self, weights: dict[str, Array]) -> None:
        """Set the network's parameters and buffers."""
        copy_weights(weights, self._views)

    def state(self) -> dict[str, Array]:
        """State to save besides the weights: the statistics of reward normalisation."""
        return self._return_scale.export_state()

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""
        self._return_scale.restore_state(arrays)

    def descent(self, outputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of all parameters, in order, given the loss's derivatives (`slopes`) by `outputs`."""
        loss: Tensor = _Loss.apply(slopes, *outputs)  # type: ignore[no-untyped-call]
        return list(torch.autograd.grad(loss, self.parameters, materialize_grads=True))

    def rewards(self, batch: Unroll) -> Tensor:
        """Shaped rewards `[T, B]`. Call it once per batch, because it updates the running statistics."""
        rewards = as_tensor(batch.rewards)
        if batch.returns is not None:
            if self._gathered is None:
                self._return_scale.update(batch.returns, np.asarray(batch.valid))
            for moments in self._gathered or ():
                self._return_scale.merge(moments[:_RETURN_MOMENTS])
            rewards = (rewards * self._return_scale.scale).clamp(-_LARGEST_REWARD, _LARGEST_REWARD)
        return shape_rewards(rewards, self._reward.kind, self._reward.scale)

    def forward(self, batch: Unroll) -> NetworkOutput:
        """The network's output `[T + 1, B]` for all inputs of the batch, with gradients."""
        return self.network.forward(*_network_inputs(batch))

    @torch.no_grad()
    def outcomes(self, batch: Unroll, output: NetworkOutput) -> Outcomes:
        """Inputs of return estimation, without gradients. Call it once per batch. `output`: result of `forward`."""
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
        """The whole batch as one minibatch, with GAE advantages from the values before the update.

        Rows keep their order for a recurrent network and are flattened for a feed-forward network.
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

    def next_values(self, batch: Unroll, output: NetworkOutput) -> Tensor:
        """Values `[T, B]` of the true next states. Call it without gradients. `output`: for `batch.inputs`."""
        values = output.values.detach()[1:]
        if not len(batch.final_index):
            return values
        times, environments = as_tensor(batch.final_index).unbind(1)
        values = values.clone()
        final = _final_inputs(batch, times, environments)
        values[times, environments] = final_values(self.network, output, final, (times, environments))
        return values


class PolicyTerms(NamedTuple):
    """The three scalar terms of an actor-critic loss; see `total_loss`."""

    policy: Tensor
    value: Tensor
    entropy: Tensor


def policy_terms(objective: Tensor, value_error: Tensor, entropy: Tensor, weight: Tensor) -> PolicyTerms:
    """Weighted sums over rows; all arguments `[T, B]`. The policy term is negative: `objective` is maximised."""
    return PolicyTerms(-dot(weight, objective), dot(weight, value_error), dot(weight, entropy))


def total_loss(terms: Sequence[FloatOrTensor], value_cost: float, entropy_cost: float) -> FloatOrTensor:
    """policy + value_cost * value - entropy_cost * entropy, for tensors or floats."""
    policy, value, entropy = terms
    return policy + value_cost * value - entropy_cost * entropy


def loss_metrics(terms: Sequence[float], value_cost: float, entropy_cost: float) -> dict[str, float]:
    """The loss and its three terms as metrics. Raises `NonFiniteLoss` if the loss is NaN or infinite."""
    policy, value, entropy = terms
    loss = total_loss(terms, value_cost, entropy_cost)
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"loss {loss} (policy {policy}, value {value}, entropy {entropy})")
    return {"train/loss": loss, "train/policy_loss": policy, "train/value_loss": value, "train/entropy": entropy}


class _Loss(torch.autograd.Function):
    """A loss of unknown value whose derivatives by its outputs are given.

    `torch.autograd.grad` also accepts derivatives, but imports sympy to compare their shapes: a third of a second at
    the first update of each learner process. This function costs 20 us per update.
    """

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slopes


def _network_inputs(batch: Unroll) -> tuple[TensorInputs, tuple[Tensor, ...]]:
    """The network's inputs for a batch, and the recurrent state before them."""
    return tensor_inputs(batch.inputs), tuple(as_tensor(part) for part in batch.state)


def _final_inputs(batch: Unroll, times: Tensor, environments: Tensor) -> TensorInputs:
    """Inputs `[1, K]` for the final observations of ended episodes."""
    obs = as_tensors(map_tree(lambda leaf: leaf[None], batch.final_obs))
    last_action = as_tensor(batch.actions)[times, environments][None]
    last_reward = as_tensor(batch.rewards)[times, environments][None]
    return TensorInputs(obs, torch.zeros(1, len(times), dtype=torch.bool), last_action, last_reward)


def mean_weights(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each row in a mean over valid rows, same shape as `valid`."""
    weight = valid.to(dtype)
    return weight.div_(weight.sum().clamp(min=1.0))


def dot(left: Tensor, right: Tensor) -> Tensor:
    """The dot product over all elements."""
    return torch.dot(left.reshape(-1), right.reshape(-1))
