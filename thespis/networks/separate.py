"""A policy and a value function that share no parameter, so that each can move without the other."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.config import NetworkConfig
from thespis.networks.heads import StochasticPolicy, build_distribution
from thespis.networks.init import orthogonal
from thespis.networks.inputs import TensorInputs, TensorTree
from thespis.networks.policies import Agent, Output, policy_head, with_deviations


class SeparateActorCritic(Agent):
    """Two networks of the same form: one acts, `critic` values. The recurrent state is that of the first, then the
    critic's."""

    distribution: StochasticPolicy

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: NetworkConfig
    ) -> None:
        super().__init__(observation_space, build_distribution(action_space), cfg)
        self.policy, self.log_std = policy_head(self.size, self.distribution)
        self.critic = Agent(observation_space, self.distribution, cfg)
        self.value = orthogonal(nn.Linear(self.critic.size, 1), 1.0)

    def policy_parameters(self) -> list[nn.Parameter]:
        critic = set(self.value_parameters())
        return [parameter for parameter in self.parameters() if parameter not in critic]

    def value_parameters(self) -> list[nn.Parameter]:
        return [*self.critic.parameters(), *self.value.parameters()]

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return super().initial_state(batch) + self.critic.initial_state(batch)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> Output:
        params, states = self.distribution_params(inputs, state)
        values, critic_states = self.state_values(inputs, state)
        return Output(params, values, states + critic_states)

    def distribution_params(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Distribution parameters `[T, B, P]`, and the policy's half of the recurrent state after each step."""
        features, states = self.features(inputs, state[: len(state) // 2])
        params = with_deviations(self.policy(features), self.log_std)
        return params.view(*inputs.first.shape, -1), states

    def state_values(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Values `[T, B]`, and the critic's half of the recurrent state after each step."""
        features, states = self.critic.features(inputs, state[len(state) // 2 :])
        values: Tensor = self.value(features)
        return values.view(inputs.first.shape), states

    def observe(self, obs: TensorTree) -> None:
        super().observe(obs)
        self.critic.observe(obs)
