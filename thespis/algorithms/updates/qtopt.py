"""QT-Opt (Kalashnikov et al., 2018): the labeller, which computes targets, and the regression on them."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Array, Labelled, TransitionBatch, Tree
from thespis.networks.inputs import as_tensor, as_tensors
from thespis.networks.policy_runner import export_weights, load_weights
from thespis.networks.q_function import QFunctionNetwork, q_scores

CROSS_ENTROPY = "cross-entropy"


def clipped_double_q(rewards: Array, discounts: Array, first: Array, second: Array) -> Array:
    """rewards + discounts * min(first, second), with two values of the same action: all `[N]`."""
    targets: Array = rewards + discounts * np.minimum(first, second)
    return targets


def qtopt_loss(q: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Mean over `[N]` of the cross-entropy of logits `q`, or of half the squared error."""
    if kind == CROSS_ENTROPY:
        return F.binary_cross_entropy_with_logits(q, targets)
    return 0.5 * F.mse_loss(q, targets)


class Labeller:
    """Computes targets of transitions from two lagged networks, for Bellman updaters.

    The search uses the first network, theta_bar_1. Both networks evaluate the best action, and the target uses the
    lower value. With the cross-entropy loss, scores are logits, values are sigmoids, and targets are clipped to [0, 1].
    """

    def __init__(self, first: QFunctionNetwork, second: QFunctionNetwork, loss: str, rng: np.random.Generator) -> None:
        self.first, self.second, self._loss, self._rng = first, second, loss, rng
        self.loads = (partial(load_weights, first), partial(load_weights, second))
        """Functions that load weights into the first and the second network."""

    def label(self, batch: TransitionBatch, version: int) -> Labelled:
        """The transitions with their targets. `version`: packed version of the first network."""
        features = _features(self.first, batch.next_obs)
        best, first = self.first.distribution.best(features, self._rng)
        second = q_scores(self.second.critic, _features(self.second, batch.next_obs))(best[:, None])[:, 0]
        if self._loss == CROSS_ENTROPY:
            _refuse_rewards(batch.rewards)
            targets = clipped_double_q(batch.rewards, batch.discounts, _sigmoid(first), _sigmoid(second))
            targets = targets.clip(0.0, 1.0)
        else:
            targets = clipped_double_q(batch.rewards, batch.discounts, first, second)
        versions = np.full(len(targets), version, np.int64)
        return Labelled(batch.obs, batch.actions, targets.astype(np.float32), versions, batch.env_steps_at_sample)


class QTOptUpdate:
    """The QT-Opt update: labelled examples to gradients of the Q-function."""

    minibatches: ClassVar[None] = None

    def __init__(self, network: QFunctionNetwork, loss: str) -> None:
        self.network, self._loss = network, loss
        self.parameters = list(network.parameters())

    def gradients(self, batch: Labelled, want_metrics: bool = False) -> Gradients:
        """Gradients of `qtopt_loss`."""
        actions = self.network.distribution.encode(as_tensor(batch.actions))
        q, targets = self.network.critic(as_tensors(batch.obs), actions), as_tensor(batch.targets)
        with torch.no_grad():
            values = q.sigmoid() if self._loss == CROSS_ENTROPY else q.detach()
            errors = values - targets  # divided by N, this is the slope of either loss
            loss = float(qtopt_loss(q, targets, self._loss))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        # As in DQN, a product gives the gradient of the loss without building the loss in autograd.
        gradients = torch.autograd.grad(torch.dot(q, errors / len(errors)), self.parameters)
        metrics: dict[str, float] = {}
        if want_metrics:
            parts = {"td_error": errors, "q_mean": values, "target_mean": targets}
            metrics = {f"train/{name}": float(part.mean()) for name, part in parts.items()} | {"train/loss": loss}
        return Gradients(list(gradients), metrics)

    def observe(self, batch: Labelled) -> None:
        """Do nothing: this update has no running statistics and no target network."""

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters, by name."""
        return export_weights(self.network)

    def load(self, weights: dict[str, Array]) -> None:
        """Set the network's parameters."""
        load_weights(self.network, weights)

    def state(self) -> dict[str, Array]:
        """Empty: the parameter servers hold all state, including the averages."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Do nothing; see `state`."""


def _features(network: QFunctionNetwork, obs: Tree) -> Array:
    with torch.inference_mode():
        features: Array = network.critic.encoder(as_tensors(obs)).numpy()
    return features


def _sigmoid(logits: Array) -> Array:
    values: Array = 0.5 + 0.5 * np.tanh(0.5 * logits)
    return values


def _refuse_rewards(rewards: Array) -> None:
    outside = rewards[(rewards < 0.0) | (rewards > 1.0)]
    if len(outside):
        raise ThespisError(
            f"the cross-entropy loss is for returns from 0 to 1, but a reward is {outside[0]:g}; use --loss squared, "
            "or scale the rewards"
        )
