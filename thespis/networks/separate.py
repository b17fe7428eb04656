"""An actor-critic whose policy and value function share no parameters, so that each can be updated alone."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.config import NetworkConfig
from thespis.networks.heads import StochasticPolicy, build_distribution
from thespis.networks.init import orthogonal
from thespis.networks.inputs import TensorInputs, TensorTree
from thespis.networks.policies import Agent, NetworkOutput, policy_head, with_deviations


class SeparateActorCritic(Agent):
    """Two networks of the same architecture: policy and `critic`. The recurrent state holds the policy's parts, then
    the critic's."""

    distribution: StochasticPolicy

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: NetworkConfig
    ) -> None:
        super().__init__(observation_space, build_distribution(action_space), cfg)
        self.policy, self.log_std = policy_head(self.size, self.distribution)
        self.critic = Agent(observation_space, self.distribution, cfg)
        self.value = orthogonal(nn.Linear(self.critic.size, 1), 1.0)

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the policy."""
        critic = set(self.value_parameters())
        return [parameter for parameter in self.parameters() if parameter not in critic]

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the value function."""
        return [*self.critic.parameters(), *self.value.parameters()]

    def learning_only(self) -> tuple[nn.Module, ...]:
        """Return the value function, unless it is recurrent: actors store its state in unrolls."""
        return (self.critic, self.value) if self.core is None else ()

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return the zero states of the policy, then of the critic."""
        return super().initial_state(batch) + self.critic.initial_state(batch)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return policy and value at each of `[T, B]` inputs."""
        params, states = self.distribution_params(inputs, state)
        values, critic_states = self.state_values(inputs, state)
        return NetworkOutput(params, values, states + critic_states)

    def distribution_params(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return distribution parameters `[T, B, P]`, and the policy's half of the recurrent state after each step."""
        features, states = self.features(inputs, state[: len(state) // 2])
        params = with_deviations(self.policy(features), self.log_std)
        return params.view(*inputs.first.shape, -1), states

    def state_values(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return values `[T, B]`, and the critic's half of the recurrent state after each step."""
        features, states = self.critic.features(inputs, state[len(state) // 2 :])
        values: Tensor = self.value(features)
        return values.view(inputs.first.shape), states

    def observe(self, obs: TensorTree) -> None:
        """Update the running normalisation of both networks."""
        super().observe(obs)
        self.critic.observe(obs)
