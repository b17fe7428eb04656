"""The networks of deterministic policy gradients: an actor that chooses actions, a critic that values them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, PolicyOutput, State, map_tree
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.encoder import Encoder
from thespis.networks.heads import NoDensity, as_vectors
from thespis.networks.inputs import TensorInputs, TensorTree, as_tensor, as_tensors
from thespis.networks.policies import Agent, NetworkOutput
from thespis.networks.policy_runner import PolicyRunner
from thespis.networks.torso import MLP

_SMALL = 3e-3
"""Bound of the last layers' initial weights (Lillicrap et al., 2016), so that first actions and values are near 0."""


class NoisyAction(NoDensity):
    """A deterministic action with normal exploration noise. Parameters: the action in [-1, 1], then its Q-value.

    `sigma`: standard deviation of the noise, a number or `[B]`, one per environment; the actor sets it. Noisy actions
    are clipped to [-1, 1], so that the critic reads the action that the environment receives. Deterministic and clipped
    actions have no density, so log-probabilities and entropy are 0.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._shape = space.shape
        self.features = int(np.prod(space.shape))
        self.size = self.features + 1
        self.sigma: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        """Set the standard deviation of the noise."""
        self.sigma = amount

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return actions with noise, and zeros."""
        noise = rng.standard_normal((len(params), self.features), np.float32)
        noisy = params[:, :-1] + noise * np.reshape(np.float32(self.sigma), (-1, 1))
        return self._shaped(noisy.clip(-1.0, 1.0))

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return actions without noise, and zeros."""
        return self._shaped(params[:, :-1])

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions as float vectors."""
        return as_vectors(actions, self._shape).float()

    def _shaped(self, actions: Array) -> tuple[Array, Array]:
        return actions.reshape(-1, *self._shape), np.zeros(len(actions), np.float32)


class Critic(nn.Module):
    """Q(x, a). The first layer (for images, the convolutions) reads x; the other layers read its features and a."""

    def __init__(self, observation_space: spaces.Space[Any], actions: int, cfg: DPGNetworkConfig) -> None:
        super().__init__()
        first, *others = cfg.critic_hidden
        self.encoder = Encoder(observation_space, replace(cfg, hidden=(first,)))
        self.joint = MLP(self.encoder.size + actions, others, cfg.activation)
        self.output = init_small(nn.Linear(self.joint.size, 1))

    def forward(self, obs: TensorTree, actions: Tensor) -> Tensor:
        """Return Q-values `[N]` of `actions` `[N, A]` at `obs` `[N, ...]`."""
        return self.value(self.encoder(obs), actions)

    def value(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return Q-values `[N]` from the encoder's features `[N, F]`."""
        value: Tensor = self.output(self.joint(torch.cat([features, actions], -1)))
        return value.squeeze(-1)


class DPGNetwork(Agent):
    """A deterministic policy and its critic. `NetworkOutput.params` are actions in [-1, 1] and their Q-values.

    `Environments` scales [-1, 1] to the bounds of the action space; policy and critic do not depend on them.
    """

    distribution: NoisyAction

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: DPGNetworkConfig
    ) -> None:
        super().__init__(observation_space, NoisyAction(require_bounded(action_space)), cfg)
        actions = self.distribution.features
        self.policy = init_small(nn.Linear(self.size, actions))
        self.critic = Critic(observation_space, actions, cfg)

    def act(self, obs: TensorTree) -> Tensor:
        """Return actions `[N, A]` for observations `[N, ...]`."""
        actions: Tensor = self.policy(self.encoder(obs)).tanh()
        return actions

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return actions and Q-values at each of `[T, B]` inputs."""
        steps, batch = inputs.first.shape
        obs: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs)
        actions = self.act(obs)
        values = self.critic(obs, actions)
        params = torch.cat([actions, values.unsqueeze(-1)], -1)
        return NetworkOutput(params.view(steps, batch, -1), values.view(steps, batch), ())

    def learning_only(self) -> tuple[nn.Module, ...]:
        """Return the critic: actions do not depend on it."""
        return (self.critic,)

    def observe(self, obs: TensorTree) -> None:
        """Update the running normalisation of policy and critic."""
        super().observe(obs)
        self.critic.encoder.observe(map_tree(lambda leaf: leaf.flatten(0, 1), obs))


class ValuingPolicyRunner(PolicyRunner):
    """A policy runner that also returns the critic's Q-values of the noisy action and of the policy's own."""

    def __init__(self, network: DPGNetwork, rng: np.random.Generator) -> None:
        super().__init__(network, rng)
        self._critic, self._noise = network.critic, network.distribution

    def act(self, inputs: Inputs, state: State, greedy: bool = False) -> PolicyOutput:
        """Choose an action for each of `[B]` inputs, with noise unless `greedy`."""
        params, _ = self._forward(inputs, state)
        actions, logp = self._noise.mode(params) if greedy else self._noise.sample(params, self._rng)
        with torch.inference_mode():
            taken: Array = self._critic(as_tensors(inputs.obs), self._noise.encode(as_tensor(actions))).numpy()
        return PolicyOutput(actions, logp, (), np.stack([taken, params[:, -1]], 1))

    def _unread(self) -> tuple[nn.Module, ...]:
        """None: the critic values the actions."""
        return ()


def init_small(layer: nn.Linear) -> nn.Linear:
    """Initialise a layer with small weights, so that its outputs start near 0, and return it."""
    nn.init.uniform_(layer.weight, -_SMALL, _SMALL)
    nn.init.uniform_(layer.bias, -_SMALL, _SMALL)
    return layer


def require_bounded(space: spaces.Space[Any]) -> spaces.Box:
    """Return the action space if it is a bounded float Box; otherwise raise a `ThespisError`."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ThespisError(
            f"squashed policies need a Box of continuous actions, but the environment has {space}; "
            "choose another architecture, such as apex, or wrap the environment"
        )
    if not space.is_bounded():
        raise ThespisError(
            f"actions are squashed to their bounds, but some dimensions of {space} have none; "
            "wrap the environment with gymnasium.wrappers.RescaleAction or ClipAction, or choose impala"
        )
    return space
