"""An algorithm of your own: settings, a network with a setting of its own, and a loss that autograd differentiates.

    thespis train impala --algorithm examples/custom_algorithm.py::MyAlgorithm --env CartPole-v1
    thespis train impala --algorithm examples/custom_algorithm.py::MyAlgorithm --help

It learns from unrolls, so `impala`, `seed`, `a3c`, `a2c` and `parameter-server` all take it, on any runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from thespis import (
    ActorCritic,
    Algorithm,
    Count,
    Exploration,
    Fraction,
    Gradients,
    NetworkConfig,
    NonFiniteLoss,
    NonNegative,
    OptimizerConfig,
    PolicyNetwork,
    PolicyUpdate,
    Positive,
    RewardConfig,
    Sampled,
    TensorInputs,
    Unroll,
    Unrolls,
    as_tensor,
    inline,
    tensor_inputs,
    train,
)


@dataclass(frozen=True)
class MyNetworkConfig(NetworkConfig):
    """The stock settings (--network.torso, --network.hidden, ...) and one more."""

    blocks: Count = 1
    """Residual blocks between the torso and the heads."""


class MyNetwork(ActorCritic):
    """The stock network with residual blocks before its heads."""

    def __init__(self, observation_space, action_space, cfg: MyNetworkConfig) -> None:
        super().__init__(observation_space, action_space, cfg)
        self.blocks = nn.ModuleList(nn.Linear(self.size, self.size) for _ in range(cfg.blocks))

    def features(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        features, states = super().features(inputs, state)  # [T * B, size]
        for block in self.blocks:
            features = features + torch.tanh(block(features))
        return features, states


@dataclass(frozen=True)
class MyAlgorithm(Algorithm[Unrolls]):
    """Actor-critic on lambda-returns, with importance ratios clipped at `--ratio-clip`."""

    items: Unrolls = inline(lambda: Unrolls(unroll_length=8))  # adds --unroll-length
    exploration: Exploration = inline(Sampled)
    discount: Fraction = 0.99
    """Discount factor."""
    return_lambda: Fraction = 0.95
    """Lambda of the returns: 0 uses one reward and the next value, 1 uses all rewards of the unroll."""
    ratio_clip: Positive = 1.0
    """Upper bound of the importance ratio that weights an action."""
    entropy_cost: NonNegative = 0.01
    """Weight of the entropy bonus."""
    value_cost: NonNegative = 0.25
    """Weight of the value loss."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    network: MyNetworkConfig = field(default_factory=MyNetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, anneal=True, clip=0.5)
    )

    def network_class(self) -> Callable[..., PolicyNetwork]:
        return MyNetwork

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> "MyUpdate":
        return MyUpdate(network, self)


class MyUpdate(PolicyUpdate):
    """Computes gradients from unrolls. The base class shapes rewards and bootstraps truncated episodes."""

    minibatches = None  # one gradient per batch

    def __init__(self, network: PolicyNetwork, cfg: MyAlgorithm) -> None:
        super().__init__(network, cfg.discount, cfg.reward)
        self.cfg = cfg

    def gradients(self, batch: Unroll, want_metrics: bool = False) -> Gradients:
        output = self.network.forward(tensor_inputs(batch.inputs), tuple(as_tensor(part) for part in batch.state))
        logp, entropy = self.network.distribution.evaluate(output.params[:-1], as_tensor(batch.actions))
        values, valid = output.values[:-1], as_tensor(batch.valid)  # all [T, B]
        with torch.no_grad():
            returns = lambda_returns(self.rewards(batch), self.next_values(batch, output), batch, self.cfg)
            ratio = (logp - as_tensor(batch.behaviour_logp)).exp().clamp(max=self.cfg.ratio_clip)
            advantages = ratio * (returns - values)

        policy = -(advantages * logp)[valid].mean()
        value = mse_loss(values[valid], returns[valid])
        bonus = entropy[valid].mean()
        loss = policy + self.cfg.value_cost * value - self.cfg.entropy_cost * bonus
        if not loss.isfinite():
            raise NonFiniteLoss(f"loss {loss.item()}")

        metrics = {"train/loss": loss.item(), "train/entropy": bonus.item()} if want_metrics else {}
        return Gradients(list(torch.autograd.grad(loss, self.parameters)), metrics)


def lambda_returns(rewards: Tensor, next_values: Tensor, batch: Unroll, cfg: MyAlgorithm) -> Tensor:
    """Returns `[T, B]`. They bootstrap at the end of the unroll, at the end of an episode, and at rows to skip."""
    terminated, valid = as_tensor(batch.terminated), as_tensor(batch.valid)
    ends = terminated | as_tensor(batch.truncated) | ~valid
    returns, later = torch.zeros_like(rewards), next_values[-1]
    for t in reversed(range(len(rewards))):
        mixed = (1.0 - cfg.return_lambda) * next_values[t] + cfg.return_lambda * later
        after = torch.where(ends[t], next_values[t], mixed)
        later = returns[t] = rewards[t] + cfg.discount * after * ~terminated[t]
    return returns


if __name__ == "__main__":
    run = train("impala", algorithm=MyAlgorithm(ratio_clip=1.0), env="CartPole-v1", stop_at_return=475)
    print(run.evaluate().mean)
