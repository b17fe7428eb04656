"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905) from n-step transitions: network, losses, update."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from thespis.algorithms.sac import SAC
from thespis.algorithms.updates.replay_statistics import ReplayStatistics
from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, TransitionBatch, map_tree
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.dpg import Critic, init_small, require_bounded
from thespis.networks.heads import HALF_LOG_2PI, Gaussian
from thespis.networks.inputs import TensorInputs, TensorTree, as_tensor, as_tensors
from thespis.networks.policies import Agent, NetworkOutput
from thespis.networks.policy_runner import copy_weights, export_weights, load_weights

LEAST_LOG_STD, MOST_LOG_STD = -20.0, 2.0
"""Range of the log standard deviations (the authors' code)."""
_LOG_2 = math.log(2.0)
_LARGEST = 1.0 - 2.0**-24
"""The largest float32 below 1. Actions rounded to a bound are clipped to it, so that atanh stays finite."""


class SquashedGaussian(Gaussian):
    """tanh of independent normal variables.

    Actions lie in [-1, 1]. With u the normal variable, log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays
    exact where tanh(u) rounds to 1. `mode` is tanh of the mean, as in the paper.
    """

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy. The entropy has no closed form; its one-sample estimate is -logp."""
        mean, log_std = params.chunk(2, -1)
        u = self.encode(actions).clamp(-_LARGEST, _LARGEST).atanh()
        logp = squashed_log_prob(u, (u - mean) * (-log_std).exp(), log_std)
        return logp, -logp

    def draw(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[..., features]` from standard normal `noise`, and their log-probabilities, with gradients."""
        mean, log_std = params.chunk(2, -1)
        u = mean + log_std.exp() * noise
        return u.tanh(), squashed_log_prob(u, noise, log_std)

    def _act(self, params: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = params[:, : self.features], params[:, self.features :]
        u = mean + np.exp(log_std) * noise
        width = 2.0 * (_LOG_2 - u - np.logaddexp(np.float32(0.0), -2.0 * u))
        logp = (-0.5 * noise * noise - log_std - HALF_LOG_2PI - width).sum(-1)
        return np.tanh(u).reshape(-1, *self._shape), logp


class SACNetwork(Agent):
    """A stochastic policy, its critics and the log temperature; they share no parameters.

    `NetworkOutput.params` are means and log standard deviations. `NetworkOutput.values` are 0, because acting does not
    evaluate the critics. Actions are in [-1, 1]; the environments rescale them to the action bounds.
    """

    distribution: SquashedGaussian

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        cfg: DPGNetworkConfig,
        critics: int = 2,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(observation_space, SquashedGaussian(require_bounded(action_space)), cfg)
        self.policy = init_small(nn.Linear(self.size, self.distribution.size))
        features = self.distribution.features
        self.critics = Critics(Critic(observation_space, features, cfg) for _ in range(critics))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def policy_params(self, obs: TensorTree) -> Tensor:
        """Means and log standard deviations `[N, 2 A]` for observations `[N, ...]`."""
        mean, log_std = self.policy(self.encoder(obs)).chunk(2, -1)
        return torch.cat([mean, log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD)], -1)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """The policy's output for inputs `[T, B, ...]`."""
        steps, batch = inputs.first.shape
        params = self.policy_params(map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs))
        return NetworkOutput(params.view(steps, batch, -1), params.new_zeros(steps, batch), ())

    def learning_only(self) -> tuple[nn.Module | nn.Parameter, ...]:
        """Return critics and temperature, which acting does not read."""
        return self.critics, self.log_temperature

    def observe(self, obs: TensorTree) -> None:
        """Update the running statistics of policy and critics."""
        super().observe(obs)
        self.critics.observe(map_tree(lambda leaf: leaf.flatten(0, 1), obs))


class Critics(nn.Module):
    """K independent estimates of Q(x, a)."""

    def __init__(self, critics: Iterable[Critic]) -> None:
        super().__init__()
        self.each: Sequence[Critic] = nn.ModuleList(critics)  # type: ignore[assignment]

    def forward(self, obs: TensorTree, actions: Tensor) -> Tensor:
        """Values `[K, N]` of `actions` `[N, A]` at observations `[N, ...]`."""
        return self.values(self.encode(obs), actions)

    def encode(self, obs: TensorTree) -> list[Tensor]:
        """Features of each critic's encoder for observations `[N, ...]`."""
        return [critic.encoder(obs) for critic in self.each]

    def values(self, features: list[Tensor], actions: Tensor) -> Tensor:
        """Values `[K, N]` from the encoders' features."""
        return torch.stack([critic.value(part, actions) for critic, part in zip(self.each, features, strict=True)])

    def observe(self, obs: TensorTree) -> None:
        """Update the running statistics with observations `[N, ...]`, if the critics normalise."""
        for critic in self.each:
            critic.encoder.observe(obs)


def squashed_log_prob(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density `[...]` of tanh(u) for a normal u `[..., A]`. `noise`: (u - mean) / std."""
    width = 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))
    return (-0.5 * noise * noise - log_std - HALF_LOG_2PI - width).sum(-1)


def soft_targets(rewards: Tensor, discounts: Tensor, next_q: Tensor, next_logp: Tensor, temperature: Tensor) -> Tensor:
    """rewards + discounts * (min next_q - temperature * next_logp): `[N]`, with `next_q` `[K, N]`, the others `[N]`.

    The n-step reward contains no entropy terms; only the bootstrap value includes entropy.
    """
    return rewards + discounts * (next_q.amin(0) - temperature * next_logp)


def sac_critic_loss(q: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Half the importance-weighted squared errors: mean over the batch, sum over the critics. `q`: `[K, N]`."""
    return 0.5 * (weights * (q - targets).square()).mean(-1).sum()


def sac_actor_loss(logp: Tensor, q: Tensor, temperature: Tensor) -> Tensor:
    """Mean of temperature * log pi(a|x) - min Q(x, a), for actions sampled from the policy. `q`: `[K, N]`."""
    return (temperature * logp - q.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, logp: Tensor, target_entropy: float) -> Tensor:
    """Loss of the temperature: it falls where the entropy -logp exceeds its target."""
    return -log_temperature.exp() * (logp.mean() + target_entropy)


class SACUpdate(ReplayStatistics):
    """The SAC update: transitions to gradients of policy, critics and temperature.

    Each of the three losses has gradients of its own parameters only. Target critics follow softly: after each update
    target += tau * (critic - target). Priorities are |TD error|, averaged over the critics.
    """

    minibatches: ClassVar[None] = None
    network: SACNetwork

    def __init__(
        self,
        network: SACNetwork,
        cfg: SAC,
        rng: np.random.Generator,
        count_updates: Callable[[], int] | None = None,
    ) -> None:
        """`rng`: noise of the policy's actions. It is not saved, because every incarnation of a learner has its own.

        `count_updates`: returns the updates of the parameters by all learners; None if there is one learner.
        """
        self.network, self.prioritised = network, bool(cfg.items.replay.priority_exponent)
        self.parameters = list(network.parameters())
        self._cfg, self._rng, self._count_updates = cfg, rng, count_updates
        self._updates = 0
        self._target = copy.deepcopy(network.critics)
        self._followed: list[Tensor] = list(network.critics.parameters())
        self._following: list[Tensor] = list(self._target.parameters())
        self._target_views = {f"target/{name}": value.numpy() for name, value in self._target.state_dict().items()}
        entropy = cfg.target_entropy
        self._target_entropy = -float(network.distribution.features) if entropy is None else entropy

    def gradients(self, batch: TransitionBatch, want_metrics: bool = False) -> Gradients:
        """Gradients of the three losses, and new priorities."""
        network, critics, obs = self.network, self.network.critics, as_tensors(batch.obs)
        shape = (2, len(batch.rewards), network.distribution.features)
        next_noise, noise = torch.from_numpy(self._rng.standard_normal(shape, np.float32))
        temperature = network.log_temperature.detach().exp()
        targets = self._targets(batch, next_noise, temperature)
        features = critics.encode(obs)
        q = critics.values(features, network.distribution.encode(as_tensor(batch.actions)))
        actions, logp = network.distribution.draw(network.policy_params(obs), noise)
        with frozen(self._followed):
            own_q = critics.values([part.detach() for part in features], actions)
        losses = {
            "critic": sac_critic_loss(q, targets, as_tensor(batch.weights)),
            "actor": sac_actor_loss(logp, own_q, temperature),
        }
        if self._cfg.learn_temperature:
            losses["ent_coef"] = temperature_loss(network.log_temperature, logp.detach(), self._target_entropy)
        loss = torch.stack(list(losses.values())).sum()
        if not math.isfinite(loss.item()):
            raise NonFiniteLoss(", ".join(f"{name} loss {part.item()}" for name, part in losses.items()))
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        errors = q.detach() - targets
        metrics: dict[str, float] = {}
        if want_metrics:
            metrics = {f"train/{name}_loss": part.item() for name, part in losses.items()} | {
                "train/loss": loss.item(),
                "train/ent_coef": temperature.item(),
                "train/entropy": -logp.mean().item(),
                "train/td_error": errors.abs().mean().item(),
                "train/q_mean": q.mean().item(),
                "train/target_mean": targets.mean().item(),
            }
        return Gradients(list(gradients), metrics, errors.abs().mean(0).numpy())

    @torch.no_grad()
    def _targets(self, batch: TransitionBatch, noise: Tensor, temperature: Tensor) -> Tensor:
        network, following = self.network, as_tensors(batch.next_obs)
        actions, logp = network.distribution.draw(network.policy_params(following), noise)
        rewards, discounts = as_tensor(batch.rewards), as_tensor(batch.discounts)
        return soft_targets(rewards, discounts, self._target(following, actions), logp, temperature)

    @torch.no_grad()
    def observe(self, batch: TransitionBatch) -> None:
        """Move the target critics, once for every update since the last call, and update running statistics."""
        before = self._updates
        self.observe_batch(batch)
        self._updates = before + 1 if self._count_updates is None else self._count_updates()
        made = max(0, self._updates - before)  # a restarted server may count from an earlier checkpoint
        share = 1.0 - (1.0 - self._cfg.tau) ** made
        torch._foreach_lerp_(self._following, self._followed, share)
        if self.network.encoder.normalizes:
            for copied, buffer in zip(self._target.buffers(), self.network.critics.buffers(), strict=True):
                copied.copy_(buffer)

    def weights(self) -> dict[str, Array]:
        """Copies of the network's parameters and buffers, by name."""
        return export_weights(self.network)

    def load(self, weights: dict[str, Array]) -> None:
        """Set the network's parameters and buffers."""
        load_weights(self.network, weights)

    def state(self) -> dict[str, Array]:
        """State to save besides the weights: the target critics and the update count."""
        target = {name: view.copy() for name, view in self._target_views.items()}
        return {**target, "updates": np.array(self._updates)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""
        copy_weights({name: value for name, value in arrays.items() if name != "updates"}, self._target_views)
        self._updates = int(arrays["updates"])


@contextmanager
def frozen(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Inside this context, computations record no gradients of `parameters`."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
