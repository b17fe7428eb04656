"""QT-Opt (Kalashnikov et al., 2018): Q-learning as regression on targets that others have computed."""

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
from thespis.core.types import Array, Labelled, Transitions, Tree
from thespis.networks.acting import export_weights, load_weights
from thespis.networks.inputs import as_tensor, as_tensors
from thespis.networks.scored import ScoredNetwork, scores

CROSS_ENTROPY = "cross-entropy"


def clipped_double_q(rewards: Array, discounts: Array, first: Array, second: Array) -> Array:
    """rewards + discounts * the lower of two values of the same action: all `[N]`."""
    targets: Array = rewards + discounts * np.minimum(first, second)
    return targets


def qtopt_loss(q: Tensor, targets: Tensor, kind: str) -> Tensor:
    """The mean over `[N]` of the cross-entropy of logits `q`, or of half the squared error."""
    if kind == CROSS_ENTROPY:
        return F.binary_cross_entropy_with_logits(q, targets)
    return 0.5 * F.mse_loss(q, targets)


class Labeller:
    """What Bellman updaters compute: targets of transitions, from two lagged networks.

    The first, theta_bar_1, is searched for the best next action; both value it, and the lower value counts. With the
    cross-entropy loss scores are logits, values their sigmoids, and targets are kept within [0, 1].
    """

    def __init__(self, first: ScoredNetwork, second: ScoredNetwork, loss: str, rng: np.random.Generator) -> None:
        self.first, self.second, self._loss, self._rng = first, second, loss, rng
        self.loads = (partial(load_weights, first), partial(load_weights, second))
        """What gives each network other weights, by name."""

    def label(self, batch: Transitions, version: int) -> Labelled:
        """The transitions with their targets; `version`: packed, that of the first network."""
        features = _features(self.first, batch.next_obs)
        best, first = self.first.distribution.best(features, self._rng)
        second = scores(self.second.critic, _features(self.second, batch.next_obs))(best[:, None])[:, 0]
        if self._loss == CROSS_ENTROPY:
            _refuse_rewards(batch.rewards)
            targets = clipped_double_q(batch.rewards, batch.discounts, _sigmoid(first), _sigmoid(second))
            targets = targets.clip(0.0, 1.0)
        else:
            targets = clipped_double_q(batch.rewards, batch.discounts, first, second)
        versions = np.full(len(targets), version, np.int64)
        return Labelled(batch.obs, batch.actions, targets.astype(np.float32), versions, batch.taken)


class QTOptUpdate:
    """Turns labelled examples into gradients of Q; where the labels come from is not its business."""

    minibatches: ClassVar[None] = None

    def __init__(self, network: ScoredNetwork, loss: str) -> None:
        self.network, self._loss = network, loss
        self.parameters = list(network.parameters())

    def gradients(self, batch: Labelled, want_metrics: bool = False) -> Gradients:
        """Gradients of the mean loss."""
        actions = self.network.distribution.encode(as_tensor(batch.actions))
        q, targets = self.network.critic(as_tensors(batch.obs), actions), as_tensor(batch.targets)
        with torch.no_grad():
            values = q.sigmoid() if self._loss == CROSS_ENTROPY else q.detach()
            errors = values - targets  # of a logit's cross-entropy too, this over N is the slope
            loss = float(qtopt_loss(q, targets, self._loss))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        # A product, as in DQN: the gradient of the loss, without autograd seeing the loss itself.
        gradients = torch.autograd.grad(torch.dot(q, errors / len(errors)), self.parameters)
        metrics: dict[str, float] = {}
        if want_metrics:
            parts = {"td_error": errors, "q_mean": values, "target_mean": targets}
            metrics = {f"train/{name}": float(part.mean()) for name, part in parts.items()} | {"train/loss": loss}
        return Gradients(list(gradients), metrics)

    def observe(self, batch: Labelled) -> None:
        """Nothing here follows the batches that were applied."""

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters, by name."""
        return export_weights(self.network)

    def load(self, weights: dict[str, Array]) -> None:
        load_weights(self.network, weights)

    def state(self) -> dict[str, Array]:
        """Nothing: whoever holds the parameters has everything, the averages too."""
        return {}

    def restore(self, arrays: dict[str, Array]) -> None: ...


def _features(network: ScoredNetwork, obs: Tree) -> Array:
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
