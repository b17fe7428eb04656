"""Deterministic policy gradients (Silver et al., 2014; Lillicrap et al., 2016) from n-step transitions."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from thespis.algorithms.dqn import TargetSettings, ValueUpdate
from thespis.errors import NonFiniteLoss
from thespis.networks.dpg import Critic, DPGNetwork
from thespis.networks.inputs import as_tensor, as_tensors
from thespis.types import Transitions, map_tree


class DPGSettings(TargetSettings, Protocol):
    """What `DPGUpdate` reads. `slope_clip`: bound of every element of dQ/da."""

    @property
    def slope_clip(self) -> float: ...


def action_slopes(critic: Critic, features: Tensor, actions: Tensor, bound: float) -> Tensor:
    """dQ/da at `actions`, each element clipped to [-bound, bound]: `[N, A]`, like `actions`.

    `features`: `[N, F]`, what the critic's encoder made of the observations.
    """
    chosen = actions.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(critic.value(features.detach(), chosen).sum(), chosen)
    return slopes.clamp(-bound, bound)


class DPGUpdate(ValueUpdate):
    """Turns transitions into gradients of the actor and the critic it holds; applying them is somebody else's step.

    The critic moves towards R + D q(x', pi(x')) of the target networks, its squared errors weighted by importance.
    The actor moves up the critic's slope where its own action is; nothing of that reaches the critic's weights.
    |TD error| is left in the batch's `priorities`.
    """

    network: DPGNetwork
    _target: DPGNetwork
    _cfg: DPGSettings

    def __init__(self, network: DPGNetwork, cfg: DPGSettings) -> None:
        super().__init__(network, cfg)

    def gradients(self, batch: Transitions, want_metrics: bool = False) -> tuple[list[Tensor], dict[str, float]]:
        """Gradients in the order of `parameters`, and metrics by name (empty unless wanted)."""
        network, target, critic, obs = self.network, self._target, self.network.critic, as_tensors(batch.obs)
        with torch.no_grad():
            following = as_tensors(batch.next_obs)
            future = target.critic(following, target.act(following))
            targets = as_tensor(batch.rewards) + as_tensor(batch.discounts) * future
        features = critic.encoder(obs)
        q = critic.value(features, network.distribution.encode(as_tensor(batch.actions)))
        with torch.no_grad():
            errors = q - targets
            pulls = as_tensor(batch.weights) / len(errors) * errors
            loss = 0.5 * float(torch.dot(pulls, errors))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss}")
        batch.priorities = errors.abs_().numpy()
        actions = network.act(obs)
        slopes = action_slopes(critic, features, actions, self._cfg.slope_clip)
        # Products, as in DQN: the gradients of both losses, without autograd seeing the losses themselves. No parameter
        # is in both, so one sum has them all.
        climb = (actions * slopes).sum() / len(errors)
        gradients = torch.autograd.grad(torch.dot(q, pulls) - climb, self.parameters, materialize_grads=True)
        metrics: dict[str, float] = {}
        if want_metrics:
            parts = {"td_error": errors, "q_mean": q.detach(), "target_mean": targets, "action_slope": slopes.abs()}
            metrics = {f"train/{name}": float(part.mean()) for name, part in parts.items()} | {"train/loss": loss}
        return list(gradients), metrics

    def observe(self, batch: Transitions) -> None:
        """An update from `batch` was applied."""
        self._applied(as_tensors(map_tree(lambda leaf: leaf[None], batch.obs)))
