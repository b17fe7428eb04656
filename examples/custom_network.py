"""Train a network of your own: a torch module with `forward`, `initial_state` and `distribution`."""

import torch
from torch import nn

from thespis import train
from thespis.networks.heads import build_distribution
from thespis.networks.policies import Output


class Residual(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.distribution = build_distribution(action_space)
        self.inlet = nn.Linear(observation_space.shape[0], 64)
        self.block = nn.Sequential(nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        self.policy, self.value = nn.Linear(64, self.distribution.size), nn.Linear(64, 1)

    def initial_state(self, batch):
        return ()  # no memory

    def forward(self, inputs, state):  # inputs.obs: [T, B, ...]
        x = self.inlet(inputs.obs)
        x = torch.tanh(x + self.block(x))
        return Output(self.policy(x), self.value(x).squeeze(-1), ())


if __name__ == "__main__":
    train("impala", env="CartPole-v1", stop_at_return=475, network={"factory": Residual})
