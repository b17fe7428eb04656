"""Q-learning from n-step transitions: DQN (Mnih et al., 2015) and double DQN (van Hasselt et al., 2016)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.dqn import DQN
from thespis.algorithms.updates.replay_statistics import ReplayStatistics
from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, ReplaySample, TransitionBatch, Tree, map_tree
from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors
from thespis.networks.policies import PolicyNetwork
from thespis.networks.policy_runner import copy_weights, export_weights, load_weights


def q_targets(rewards: Tensor, discounts: Tensor, target_q: Tensor, chooser_q: Tensor) -> Tensor:
    """rewards + discounts * target_q(argmax of chooser_q): `[N]`, from `[N]`, `[N]`, `[N, A]`, `[N, A]`.

    `chooser_q` holds the target network's values for DQN, and the online network's values for double DQN.
    """
    best = chooser_q.argmax(-1, keepdim=True)
    return rewards + discounts * target_q.gather(-1, best).squeeze(-1)


def huber(errors: Tensor, bound: float) -> Tensor:
    """Huber loss: quadratic up to `bound`, linear beyond. Its slope is the error clipped to [-bound, bound]."""
    size = errors.abs()
    inner = size.clamp(max=bound)
    return inner * (size - 0.5 * inner)


def td_loss(errors: Tensor, weights: Tensor, bound: float) -> Tensor:
    """The sum of weight * huber(error). `weights` include the 1/N of a mean and broadcast to `errors`."""
    return (weights * huber(errors, bound)).sum()


def td_slopes(errors: Tensor, weights: Tensor, bound: float) -> Tensor:
    """The derivative of `td_loss` by the errors, which is also the derivative by the Q-values."""
    return weights * errors.clamp(-bound, bound)


class ValueUpdate(ReplayStatistics):
    """Base of value-based updates: a network and its target network, copied every `target_period` updates."""

    minibatches: ClassVar[None] = None

    def __init__(
        self,
        network: PolicyNetwork,
        target_period: int,
        count_updates: Callable[[], int] | None = None,
        prioritised: bool = False,
    ) -> None:
        """`count_updates`: returns the updates of the parameters by all learners; None if there is one learner.

        `prioritised`: whether batches have importance weights.
        """
        self.network, self.prioritised = network, prioritised
        self.parameters = list(network.parameters())
        self._target_period, self._count_updates = target_period, count_updates
        self._target = copy.deepcopy(network)
        self._updates = 0

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters and buffers, by name."""
        return export_weights(self.network)

    def load(self, weights: dict[str, Array]) -> None:
        """Set the network's parameters and buffers."""
        load_weights(self.network, weights)

    def state(self) -> dict[str, Array]:
        """State to save besides the weights: the target network and the update count."""
        target = {f"target/{name}": value for name, value in export_weights(self._target).items()}
        return {**target, "updates": np.array(self._updates)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""
        load_weights(self._target, {k.removeprefix("target/"): v for k, v in arrays.items() if k != "updates"})
        self._updates = int(arrays["updates"])

    def _copy_target(self) -> None:
        views = {name: value.numpy() for name, value in self._target.state_dict().items()}
        copy_weights({name: value.numpy() for name, value in self.network.state_dict().items()}, views)

    def observe(self, batch: ReplaySample) -> None:
        """Update running statistics and the target network after an update from `batch`."""
        self.observe_batch(batch)
        before = self._updates
        self._updates = before + 1 if self._count_updates is None else self._count_updates()
        if self._updates // self._target_period > before // self._target_period:
            self._copy_target()


class DQNUpdate(ValueUpdate):
    """The DQN update: transitions to gradients. An exchange applies them. Priorities are |TD error|."""

    def __init__(self, network: PolicyNetwork, cfg: DQN, count_updates: Callable[[], int] | None = None) -> None:
        super().__init__(network, cfg.target_period, count_updates, bool(cfg.items.replay.priority_exponent))
        self._cfg = cfg

    def gradients(self, batch: TransitionBatch, want_metrics: bool = False) -> Gradients:
        """Gradients of the Huber loss, and new priorities."""
        actions = as_tensor(batch.actions).unsqueeze(-1)
        with torch.no_grad():
            following = _inputs(batch.next_obs)
            target_q = self._target.forward(following, ()).params[0]
            chooser_q = self.network.forward(following, ()).params[0] if self._cfg.double else target_q
            targets = q_targets(as_tensor(batch.rewards), as_tensor(batch.discounts), target_q, chooser_q)
        q = self.network.forward(_inputs(batch.obs), ()).params[0].gather(-1, actions).squeeze(-1)
        with torch.no_grad():
            errors = q - targets
            weights = as_tensor(batch.weights) / len(errors)
            slopes = td_slopes(errors, weights, self._cfg.huber)
            loss = float(td_loss(errors, weights, self._cfg.huber))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        priorities = errors.abs_().numpy()
        # A product instead of `grad_outputs`, because torch imports sympy for those (one second).
        gradients = torch.autograd.grad(torch.dot(q, slopes), self.parameters, materialize_grads=True)
        metrics: dict[str, float] = {}
        if want_metrics:
            names = ("train/loss", "train/td_error", "train/q_mean", "train/target_mean")
            values = (loss, float(errors.mean()), float(q.detach().mean()), float(targets.mean()))
            metrics = dict(zip(names, values, strict=True))
        return Gradients(list(gradients), metrics, priorities)


def _inputs(obs: Tree) -> TensorInputs:
    """Independent observations `[N, ...]` as one step of N environments; nothing that a core would read."""
    tensors = as_tensors(map_tree(lambda leaf: leaf[None], obs))
    number = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
    zeros = torch.zeros(1, number)
    return TensorInputs(tensors, zeros.bool(), zeros.long(), zeros)
