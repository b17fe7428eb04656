"""The networks of deterministic policy gradients: an actor that says what to do, a critic that values it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.core.types import Acted, Array, Inputs, State, map_tree
from thespis.networks.acting import Stepper
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.encoder import Encoder
from thespis.networks.heads import as_vectors, no_density
from thespis.networks.inputs import TensorInputs, TensorTree, as_tensor, as_tensors
from thespis.networks.policies import Agent, Output
from thespis.networks.torso import MLP

_SMALL = 3e-3
"""Bound of the last layers' first weights (Lillicrap et al., 2016): actions start in the middle, values at zero."""


class NoisyAction:
    """One action, and normal noise around it; parameters are the action in [-1, 1], then its value.

    `sigma`: deviation of the noise, a number, or `[B]` for environments that explore differently. Whoever acts sets
    it. What is drawn is clipped to [-1, 1], so that the critic reads what the environment gets. An action that is
    certain has no density, and one that was clipped has none either: log-probabilities and entropy are 0.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._shape = space.shape
        self.features = int(np.prod(space.shape))
        self.size = self.features + 1
        self.sigma: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        self.sigma = amount

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return no_density(params)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        noise = rng.standard_normal((len(params), self.features), np.float32)
        noisy = params[:, :-1] + noise * np.reshape(np.float32(self.sigma), (-1, 1))
        return self._shaped(noisy.clip(-1.0, 1.0))

    def mode(self, params: Array) -> tuple[Array, Array]:
        return self._shaped(params[:, :-1])

    def encode(self, actions: Tensor) -> Tensor:
        return as_vectors(actions, self._shape).float()

    def _shaped(self, actions: Array) -> tuple[Array, Array]:
        return actions.reshape(-1, *self._shape), np.zeros(len(actions), np.float32)


class Critic(nn.Module):
    """Q(x, a): the first layer (all convolutions, for images) reads x, the others its features and a."""

    def __init__(self, observation_space: spaces.Space[Any], actions: int, cfg: DPGNetworkConfig) -> None:
        super().__init__()
        first, *others = cfg.critic_hidden
        self.encoder = Encoder(observation_space, replace(cfg, hidden=(first,)))
        self.joint = MLP(self.encoder.size + actions, others, cfg.activation)
        self.output = small(nn.Linear(self.joint.size, 1))

    def forward(self, obs: TensorTree, actions: Tensor) -> Tensor:
        """Values `[N]` of `actions` `[N, A]` where `obs` `[N, ...]` is seen."""
        return self.value(self.encoder(obs), actions)

    def value(self, features: Tensor, actions: Tensor) -> Tensor:
        """The same from what the encoder made of the observations."""
        value: Tensor = self.output(self.joint(torch.cat([features, actions], -1)))
        return value.squeeze(-1)


class DPGNetwork(Agent):
    """A deterministic policy and its critic. `Output.params` are actions in [-1, 1] and their values.

    Those who step the environment stretch [-1, 1] to its bounds; policy and critic know nothing of them.
    """

    distribution: NoisyAction

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: DPGNetworkConfig
    ) -> None:
        super().__init__(observation_space, NoisyAction(bounded(action_space)), cfg)
        actions = self.distribution.features
        self.policy = small(nn.Linear(self.size, actions))
        self.critic = Critic(observation_space, actions, cfg)

    def act(self, obs: TensorTree) -> Tensor:
        """Actions `[N, A]` for observations `[N, ...]`."""
        actions: Tensor = self.policy(self.encoder(obs)).tanh()
        return actions

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> Output:
        steps, batch = inputs.first.shape
        obs: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs)
        actions = self.act(obs)
        values = self.critic(obs, actions)
        params = torch.cat([actions, values.unsqueeze(-1)], -1)
        return Output(params.view(steps, batch, -1), values.view(steps, batch), ())

    def observe(self, obs: TensorTree) -> None:
        super().observe(obs)
        self.critic.encoder.observe(map_tree(lambda leaf: leaf.flatten(0, 1), obs))


class ValuingStepper(Stepper):
    """Explores, and says what its critic takes the noisy action and the policy's own to be worth."""

    def __init__(self, network: DPGNetwork, rng: np.random.Generator) -> None:
        super().__init__(network, rng)
        self._critic, self._noise = network.critic, network.distribution

    def act(self, inputs: Inputs, state: State, greedy: bool = False) -> Acted:
        params, _ = self._forward(inputs, state)
        actions, logp = self._noise.mode(params) if greedy else self._noise.sample(params, self._rng)
        with torch.inference_mode():
            taken: Array = self._critic(as_tensors(inputs.obs), self._noise.encode(as_tensor(actions))).numpy()
        return Acted(actions, logp, (), np.stack([taken, params[:, -1]], 1))


def small(layer: nn.Linear) -> nn.Linear:
    """The layer, freshly initialised so that little comes out of it."""
    nn.init.uniform_(layer.weight, -_SMALL, _SMALL)
    nn.init.uniform_(layer.bias, -_SMALL, _SMALL)
    return layer


def bounded(space: spaces.Space[Any]) -> spaces.Box:
    """The action space, if a squashed policy can reach all of it."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ThespisError(
            f"policies squashed to bounds need a Box of continuous actions, but the environment has {space}; "
            "choose another architecture, such as apex, or wrap the environment"
        )
    if not space.is_bounded():
        raise ThespisError(
            f"actions are squashed to their bounds, but some of {space} have none; "
            "wrap the environment with gymnasium.wrappers.RescaleAction or ClipAction, or choose impala"
        )
    return space
