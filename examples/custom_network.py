"""Train a network of your own: a torch module with `forward`, `initial_state` and `distribution`.

Run it with `thespis train impala --env CartPole-v1 --network.factory examples/custom_network.py::Residual`. The third
argument holds the settings of the network, so `--network.hidden 128 128` changes this network, too.
"""

import torch
from torch import nn

from thespis import NetworkConfig, NetworkOutput, TensorInputs, build_distribution, train


class Residual(nn.Module):
    def __init__(self, observation_space, action_space, cfg: NetworkConfig):
        super().__init__()
        self.distribution = build_distribution(action_space)
        width = cfg.hidden[0]
        self.inlet = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in cfg.hidden)
        self.policy, self.value = nn.Linear(width, self.distribution.size), nn.Linear(width, 1)

    def initial_state(self, batch: int) -> tuple[()]:
        return ()  # no memory

    def forward(self, inputs: TensorInputs, state: tuple[()]) -> NetworkOutput:  # inputs.obs: [T, B, ...]
        x = self.inlet(inputs.obs)
        for block in self.blocks:
            x = x + block(torch.tanh(x))
        x = torch.tanh(x)
        return NetworkOutput(self.policy(x), self.value(x).squeeze(-1), ())


if __name__ == "__main__":
    train("impala", env="CartPole-v1", stop_at_return=475, network={"factory": Residual, "hidden": (64, 64)})
