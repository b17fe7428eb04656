"""The policy-and-value network, and the protocol a network of your own must meet."""

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
from thespis.networks.layers import branch
from thespis.networks.recurrent import LSTMCore


class Output(NamedTuple):
    """`params`: distribution parameters `[T, B, P]`. `values`: `[T, B]`.

    `states`: per part of the recurrent state, its value after each step, `[T, B, ...]`; empty if feed-forward.
    """

    params: Tensor
    values: Tensor
    states: tuple[Tensor, ...]


class PolicyNetwork(Protocol):
    """What actors and learners ask of a network: an `nn.Module` with these methods.

    To bring your own, pass a factory `network(observation_space, action_space) -> nn.Module`. The module must act
    alike on `[1, B]` step by step and on `[T, B]` at once: `forward` zeroes the state of environment b before
    consuming step t wherever `inputs.first[t, b]`, and draws no random numbers (no dropout).
    """

    @property
    def distribution(self) -> Distribution:
        """The meaning of `Output.params`; `thespis.networks.heads.build_distribution(action_space)` makes one."""

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> Output:
        """Policy and value at each of `[T, B]` inputs, from the state before the first."""

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """State of `batch` environments at an episode start, each part `[batch, ...]`; `()` if feed-forward."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...


class Agent(nn.Module):
    """Encoder and optional LSTM core: what networks that act have in common. Heads are added by those who extend it.

    The torso is folded over T * B. As in the papers only a recurrent agent reads its last action and reward.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        distribution: Distribution,
        cfg: NetworkConfig,
        feedback: bool = True,
    ) -> None:
        """`feedback`: the core also reads what was done last and what it brought."""
        super().__init__()
        self._feedback = feedback
        self.distribution = distribution
        self.encoder = Encoder(observation_space, cfg)
        self.core: LSTMCore | None = None
        self.size = self.encoder.size
        """Features that heads read."""
        if cfg.lstm:
            self.core = LSTMCore(self.encoder.size + feedback * (1 + self.distribution.features), cfg.lstm)
            self.size = cfg.lstm

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return self.core.initial_state(batch) if self.core is not None else ()

    def features(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Features `[T * B, size]`, and the recurrent state after each step."""
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
        """Feed `[T, B, ...]` observations to the running normalisation, if there is one."""
        self.encoder.observe(_fold(obs))


class ActorCritic(Agent):
    """Two linear heads, policy and value: the agent of IMPALA, sized by its settings."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: NetworkConfig
    ) -> None:
        super().__init__(observation_space, build_distribution(action_space), cfg)
        self.policy, self.log_std = policy_head(self.size, self.distribution)
        self.value = orthogonal(nn.Linear(self.size, 1), 1.0)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> Output:
        steps, batch = inputs.first.shape
        features, states = self.features(inputs, state)
        params, values = branch(features, (self.policy, self.value))
        params = with_deviations(params, self.log_std)
        return Output(params.view(steps, batch, -1), values.view(steps, batch), states)


def policy_head(size: int, distribution: Distribution) -> tuple[nn.Linear, nn.Parameter | None]:
    """A layer from features to logits or means, and for normals the logs of deviations, alike in every state."""
    if isinstance(distribution, DiagGaussian):
        outputs = distribution.features
        return orthogonal(nn.Linear(size, outputs), 0.01), nn.Parameter(torch.zeros(outputs))
    return orthogonal(nn.Linear(size, distribution.size), 0.01), None


def with_deviations(params: Tensor, log_std: Tensor | None) -> Tensor:
    """What `policy_head` gave, `[N, ...]`, as parameters of the distribution."""
    return params if log_std is None else torch.cat([params, log_std.expand_as(params)], -1)


def final_values(network: PolicyNetwork, output: Output, final: TensorInputs, index: Sequence[Tensor]) -> Tensor:
    """Values `[K]` of observations that ended an episode and so are in no row of the unroll.

    `output`: of the unroll. `final`: `[1, K]`, with `first` false. `index`: the K times t and the K environments b of
    the steps that led there; the core goes on from its state after step t, which the reset has not touched.
    """
    times, environments = index
    state = tuple(part[times, environments] for part in output.states)
    return network.forward(final, state).values[0]


def _fold(tree: TensorTree) -> TensorTree:
    folded: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), tree)
    return folded
