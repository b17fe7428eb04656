"""The network of DQN, R2D2 and related algorithms: a Q-value for every action."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.config import QNetworkConfig
from thespis.networks.heads import EpsilonGreedy, count_actions
from thespis.networks.init import orthogonal
from thespis.networks.inputs import TensorInputs
from thespis.networks.numpy.mlp import heads_forward
from thespis.networks.policies import Agent, NetworkOutput


class QNetwork(Agent):
    """Q(x, a) for each discrete action, with an epsilon-greedy policy.

    `NetworkOutput.params` are the Q-values, `values` their maximum. Dueling (Wang et al., 2016): Q = V + A - mean of A;
    both heads are linear on the same features.
    """

    distribution: EpsilonGreedy

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: QNetworkConfig
    ) -> None:
        actions = count_actions(action_space)
        super().__init__(observation_space, EpsilonGreedy(actions), cfg, cfg.feedback)
        self.advantage = orthogonal(nn.Linear(self.size, actions), 1.0)
        self.value = orthogonal(nn.Linear(self.size, 1), 1.0) if cfg.dueling else None

    def q_values(self, features: Tensor) -> Tensor:
        """Return Q-values `[..., actions]` of features `[..., size]`."""
        if self.value is None:
            q: Tensor = self.advantage(features)
            return q
        advantages, value = heads_forward(features, (self.advantage, self.value))
        return advantages - advantages.mean(-1, keepdim=True) + value

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return Q-values and their maximum at each of `[T, B]` inputs."""
        steps, batch = inputs.first.shape
        features, states = self.features(inputs, state)
        q = self.q_values(features).view(steps, batch, -1)
        return NetworkOutput(q, q.amax(-1), states)
