"""The stock actor-critic network, and the protocol that a custom network implements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.config import NetworkConfig
from thespis.core.types import map_tree
from thespis.networks.encoder import Encoder
from thespis.networks.heads import DiagGaussian, Distribution, build_distribution
from thespis.networks.init import orthogonal
from thespis.networks.inputs import TensorInputs, TensorTree
from thespis.networks.numpy.mlp import heads_forward
from thespis.networks.recurrent import LSTMCore


class NetworkOutput(NamedTuple):
    """Output of a policy network. `params`: distribution parameters `[T, B, P]`. `values`: state values `[T, B]`.

    `states`: each part of the recurrent state after each step, `[T, B, ...]`; empty for a feed-forward network.
    """

    params: Tensor
    values: Tensor
    states: tuple[Tensor, ...]


class PolicyNetwork(Protocol):
    """The interface of a network to actors and learners: an `nn.Module` with these methods.

    To use your own network, pass a factory `network(observation_space, action_space) -> nn.Module`. The module must
    return the same results for T steps one by one, `[1, B]`, and at once, `[T, B]`. So `forward` zeroes the state of
    environment b before step t wherever `inputs.first[t, b]` is true, and draws no random numbers (no dropout).

    It may have a method `learning_only()`, which returns the modules and parameters that do not change `params` and
    `states`. Actors that pull compressed weights do not receive them.
    """

    @property
    def distribution(self) -> Distribution:
        """The action distribution that reads `NetworkOutput.params`; `build_distribution(action_space)` makes one."""

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return policy and value at each of `[T, B]` inputs. `state`: the recurrent state before the first step."""

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return the state of `batch` environments at an episode's start, each part `[batch, ...]`; `()` if none."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters, as `nn.Module` does."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers by name, as `nn.Module` does."""
        ...


class Agent(nn.Module):
    """Base of policy networks: an encoder and an optional LSTM core. Subclasses add heads.

    The encoder runs on all T * B observations at once. As in the papers, only a recurrent network reads the last action
    and reward.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        distribution: Distribution,
        cfg: NetworkConfig,
        feedback: bool = True,
    ) -> None:
        """Build encoder and core. `feedback`: the core also reads the last action and reward."""
        super().__init__()
        self._feedback = feedback
        self.distribution = distribution
        self.encoder = Encoder(observation_space, cfg)
        self.core: LSTMCore | None = None
        self.size = self.encoder.size
        """Number of features that the heads read."""
        if cfg.lstm:
            self.core = LSTMCore(self.encoder.size + feedback * (1 + self.distribution.features), cfg.lstm)
            self.size = cfg.lstm

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return the zero state of the core; empty without a core."""
        return self.core.initial_state(batch) if self.core is not None else ()

    def features(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return features `[T * B, size]`, and the recurrent state after each step."""
        features = self.encoder(_fold(inputs.obs))
        if self.core is None:
            return features, ()
        steps, batch = inputs.first.shape
        read = [features.view(steps, batch, -1)]
        if self._feedback:
            last_reward = inputs.last_reward.clamp(-1.0, 1.0).unsqueeze(-1)
            read += [last_reward, self.distribution.encode(inputs.last_action)]
        states = self.core(torch.cat(read, -1), inputs.first, state)
        return states[0].flatten(0, 1), states

    def observe(self, obs: TensorTree) -> None:
        """Update the running normalisation, if there is one, with `[T, B, ...]` observations."""
        self.encoder.observe(_fold(obs))


class ActorCritic(Agent):
    """The network of IMPALA: two linear heads, policy and value, on shared features."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: NetworkConfig
    ) -> None:
        super().__init__(observation_space, build_distribution(action_space), cfg)
        self.policy, self.log_std = policy_head(self.size, self.distribution)
        self.value = orthogonal(nn.Linear(self.size, 1), 1.0)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return policy and value at each of `[T, B]` inputs."""
        steps, batch = inputs.first.shape
        features, states = self.features(inputs, state)
        params, values = heads_forward(features, (self.policy, self.value))
        params = with_deviations(params, self.log_std)
        return NetworkOutput(params.view(steps, batch, -1), values.view(steps, batch), states)

    def learning_only(self) -> tuple[nn.Module, ...]:
        """Return the value head, which actors need not receive."""
        return (self.value,)


def policy_head(size: int, distribution: Distribution) -> tuple[nn.Linear, nn.Parameter | None]:
    """Return a linear layer from features to logits or means, and for a Gaussian the state-independent log-std."""
    if isinstance(distribution, DiagGaussian):
        outputs = distribution.features
        return orthogonal(nn.Linear(size, outputs), 0.01), nn.Parameter(torch.zeros(outputs))
    return orthogonal(nn.Linear(size, distribution.size), 0.01), None


def with_deviations(params: Tensor, log_std: Tensor | None) -> Tensor:
    """Append the log-std of `policy_head`, if there is one, to its outputs `[N, ...]`."""
    return params if log_std is None else torch.cat([params, log_std.expand_as(params)], -1)


def final_values(network: PolicyNetwork, output: NetworkOutput, final: TensorInputs, index: Sequence[Tensor]) -> Tensor:
    """Return values `[K]` of final observations, which ended an episode and are in no row of the unroll.

    `output`: the network's output on the unroll. `final`: `[1, K]`, with `first` false. `index`: times t and
    environments b of the K last steps. The core continues from its state after step t, before the reset zeroes it.
    """
    times, environments = index
    state = tuple(part[times, environments] for part in output.states)
    return network.forward(final, state).values[0]


def _fold(tree: TensorTree) -> TensorTree:
    folded: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), tree)
    return folded
