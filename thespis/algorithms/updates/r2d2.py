"""R2D2 (Kapturowski et al., 2019): n-step double Q-learning of a recurrent network from replayed sequences."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thespis.algorithms.r2d2 import R2D2
from thespis.algorithms.updates.dqn import ValueUpdate, td_loss, td_slopes
from thespis.algorithms.updates.priorities import mixed_priorities
from thespis.algorithms.updates.rescaling import rescale, unscale
from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import SequenceBatch, map_tree
from thespis.networks.inputs import TensorInputs, as_tensor, tensor_inputs
from thespis.networks.policies import PolicyNetwork


def r2d2_targets(returns: Tensor, discounts: Tensor, ahead: Tensor, target_q: Tensor, chooser_q: Tensor) -> Tensor:
    """h(R + D h^-1(target_q(argmax of chooser_q))): `[T, N]`. `ahead`: bootstrap row of each step, up to T."""
    best = chooser_q.argmax(-1, keepdim=True)
    values = target_q.gather(-1, best).squeeze(-1).gather(0, ahead)
    return rescale(returns + discounts * unscale(values))


class R2D2Update(ValueUpdate):
    """The R2D2 update: sequences to gradients.

    Network and target network both burn in from the stored state, each with its own weights and without gradients. The
    loss is summed over the steps of a sequence (paper) and averaged over the sequences of a batch.
    """

    def __init__(self, network: PolicyNetwork, cfg: R2D2) -> None:
        super().__init__(network, cfg.target_period, prioritised=bool(cfg.items.replay.priority_exponent))
        self._cfg = cfg

    def gradients(self, batch: SequenceBatch, want_metrics: bool = False) -> Gradients:
        """Gradients of the Huber loss, and new priorities."""
        bound, steps = self._cfg.huber, len(batch.rewards)
        inputs = tensor_inputs(batch.inputs)
        before, learned = _part(inputs, 0, len(batch.valid) - steps), _part(inputs, len(batch.valid) - steps, None)
        state = tuple(as_tensor(part) for part in batch.state)
        actions, valid = as_tensor(batch.actions[-steps:]).unsqueeze(-1), as_tensor(batch.valid[-steps:])
        with torch.no_grad():
            target_q = self._target.forward(learned, burnt_in(self._target, before, state)).params
            start = burnt_in(self.network, before, state)
        all_q = self.network.forward(learned, start).params
        q = all_q[:-1].gather(-1, actions).squeeze(-1)
        with torch.no_grad():
            returns, discounts, ahead = (as_tensor(part) for part in (batch.rewards, batch.discounts, batch.ahead))
            targets = r2d2_targets(returns, discounts, ahead, target_q, all_q if self._cfg.double else target_q)
            errors = (q - targets) * valid
            weights = as_tensor(batch.weights) / len(batch.weights)
            slopes = td_slopes(errors, weights, bound)
            loss = float(td_loss(errors, weights, bound))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        priorities = mixed_priorities(errors.abs().numpy(), batch.valid[-steps:], self._cfg.items.eta)
        # As in DQN, a product gives the gradient of the loss without building the loss in autograd.
        gradients = torch.autograd.grad((q * slopes).sum(), self.parameters, materialize_grads=True)
        metrics: dict[str, float] = {}
        if want_metrics:
            number = max(1, int(valid.sum()))
            names = ("train/loss", "train/td_error", "train/q_mean", "train/target_mean")
            sums = (errors.abs(), q.detach() * valid, targets * valid)
            metrics = dict(zip(names, (loss, *(float(part.sum()) / number for part in sums)), strict=True))
        return Gradients(list(gradients), metrics, priorities)


def burnt_in(network: PolicyNetwork, before: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The recurrent state after the burn-in steps `before`; `state` itself if there are none."""
    if not state or not len(before.first):
        return state
    return tuple(part[-1] for part in network.forward(before, state).states)


def _part(inputs: TensorInputs, start: int, end: int | None) -> TensorInputs:
    """The steps from `start` to `end`."""
    return TensorInputs(
        map_tree(lambda leaf: leaf[start:end], inputs.obs),
        inputs.first[start:end],
        inputs.last_action[start:end],
        inputs.last_reward[start:end],
    )
