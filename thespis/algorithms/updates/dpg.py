"""Deterministic policy gradients (Silver et al., 2014; Lillicrap et al., 2016) from n-step transitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from thespis.algorithms.dpg import DPG
from thespis.algorithms.updates.dqn import ValueUpdate
from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import TransitionBatch
from thespis.networks.dpg import Critic, DPGNetwork
from thespis.networks.inputs import as_tensor, as_tensors


def action_slopes(critic: Critic, features: Tensor, actions: Tensor, bound: float) -> Tensor:
    """dQ/da at `actions`, each element clipped to [-bound, bound]: `[N, A]`, like `actions`.

    `features`: `[N, F]`, the critic's encoding of the observations.
    """
    chosen = actions.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(critic.value(features.detach(), chosen).sum(), chosen)
    return slopes.clamp(-bound, bound)


def dpg_critic_loss(errors: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of half the squared errors `[N]`; its derivative by each error is weight * error."""
    return 0.5 * torch.dot(weights * errors, errors)


def dpg_actor_loss(actions: Tensor, slopes: Tensor) -> Tensor:
    """A loss with the gradient of -mean Q(x, a) at `actions` `[N, A]`, given dQ/da as `slopes`.

    By the deterministic policy gradient theorem (Silver et al., 2014) the critic enters only through its slopes, so
    they can be clipped and the critic's weights receive no gradient.
    """
    return -(actions * slopes).sum() / len(actions)


class DPGUpdate(ValueUpdate):
    """The DPG update: transitions to gradients of policy and critic. An exchange applies them.

    The critic regresses on R + D q(x', pi(x')) of the target networks, with importance-weighted squared errors. The
    policy follows dQ/da at its own action, without a gradient to the critic's weights. Priorities are |TD error|.
    """

    network: DPGNetwork
    _target: DPGNetwork

    def __init__(self, network: DPGNetwork, cfg: DPG, count_updates: Callable[[], int] | None = None) -> None:
        super().__init__(network, cfg.target_period, count_updates, bool(cfg.items.replay.priority_exponent))
        self._cfg = cfg

    def gradients(self, batch: TransitionBatch, want_metrics: bool = False) -> Gradients:
        """Gradients of both losses, and new priorities."""
        network, target, critic, obs = self.network, self._target, self.network.critic, as_tensors(batch.obs)
        with torch.no_grad():
            following = as_tensors(batch.next_obs)
            future = target.critic(following, target.act(following))
            targets = as_tensor(batch.rewards) + as_tensor(batch.discounts) * future
        features = critic.encoder(obs)
        q = critic.value(features, network.distribution.encode(as_tensor(batch.actions)))
        with torch.no_grad():
            errors = q - targets
            weights = as_tensor(batch.weights) / len(errors)
            pulls = weights * errors
            loss = float(dpg_critic_loss(errors, weights))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        priorities = errors.abs_().numpy()
        actions = network.act(obs)
        slopes = action_slopes(critic, features, actions, self._cfg.slope_clip)
        # As in DQN, products give the gradients of both losses without building the losses in autograd. The losses
        # share no parameter, so one sum is enough.
        descent = torch.dot(q, pulls) + dpg_actor_loss(actions, slopes)
        gradients = torch.autograd.grad(descent, self.parameters, materialize_grads=True)
        metrics: dict[str, float] = {}
        if want_metrics:
            parts = {"td_error": errors, "q_mean": q.detach(), "target_mean": targets, "action_slope": slopes.abs()}
            metrics = {f"train/{name}": float(part.mean()) for name, part in parts.items()} | {"train/loss": loss}
        return Gradients(list(gradients), metrics, priorities)
