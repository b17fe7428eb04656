"""Pipeline parallelism: the first layers of a network in the learner, the others in its shard.

A batch is divided into micro-batches of environments. While the shard computes one of them, the learner computes the
next, in the forward pass and in the backward pass; between the two all outputs meet in the loss, as in GPipe (Huang et
al., 2019, arXiv:1811.06965):

    learner:  f1 f2 f3 f4 .......... loss .......... b4 b3 b2 b1
    shard:       F1 F2 F3 F4             B4 B3 B2 B1
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from thespis.core.types import map_tree
from thespis.networks.inputs import TensorInputs
from thespis.networks.numpy.mlp import heads_forward, mlp_forward
from thespis.networks.partition import Partition
from thespis.networks.policies import ActorCritic, NetworkOutput, with_deviations
from thespis.networks.recurrent import LSTMCore
from thespis.networks.remote import RemoteBlocks, RemotePass
from thespis.networks.torso import MLP, ImageTorso

_MICROBATCHES = 4
"""Micro-batches per batch. The shard has nothing to do during the first one, and the learner during the last one."""


class LastStage(nn.Module):
    """The last layers of an actor-critic: those of its encoder that are not in the first stage, core and heads."""

    def __init__(self, whole: ActorCritic, layers: list[nn.Linear], activation: str) -> None:
        """`layers`: the last ones of the encoder."""
        super().__init__()
        self._layers, self._activation = nn.ModuleList(layers), activation
        self.core: LSTMCore | None = whole.core
        self.policy, self.value, self.log_std = whole.policy, whole.value, whole.log_std

    def forward(self, x: Tensor, first: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return parameters `[T, B, P]` and values `[T, B]`, and with a core its states `[T, B, ...]`.

        `x`: `[T, B, F]`, what the core or the next layer reads. `first`: bool `[T, B]`.
        """
        steps, batch = first.shape
        states: tuple[Tensor, ...] = ()
        if self.core is not None:
            states = self.core(x, first, state)
            features = states[0].flatten(0, 1)
        else:
            layers: Any = self._layers
            features = mlp_forward(x.flatten(0, 1), layers, self._activation)
        params, values = heads_forward(features, (self.policy, self.value))
        params = with_deviations(params, self.log_std)
        return params.view(steps, batch, -1), values.view(steps, batch), *states


class FirstStage(ActorCritic):
    """The learner's layers. Its outputs are those of the whole network, because it calls the last stage."""

    def __init__(self, whole: ActorCritic, remote: RemoteBlocks) -> None:
        """`whole`: a network whose encoder has lost the layers of the last stage."""
        nn.Module.__init__(self)
        self._feedback, self.distribution, self.encoder = whole._feedback, whole.distribution, whole.encoder
        self.core = None
        self._state_size = 0 if whole.core is None else whole.core.size
        self._remote = remote

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return the zero state of the core in the last stage; empty without a core."""
        size = self._state_size
        return (torch.zeros(batch, size), torch.zeros(batch, size)) if size else ()

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return policy and value at each of `[T, B]` inputs, computed in micro-batches of environments."""
        anchor, batch = next(self.parameters()), inputs.first.shape[1]
        passes = []
        for chosen in torch.arange(batch).chunk(min(_MICROBATCHES, batch)):
            part, own = _environments(inputs, slice(int(chosen[0]), int(chosen[-1]) + 1), state)
            passes.append(RemotePass(self._remote.open(1, 0), anchor, (self._read(part), part.first, *own)))
        params, values, *states = (
            torch.cat(parts, 1) for parts in zip(*(each.outputs() for each in passes), strict=True)
        )
        return NetworkOutput(params, values, tuple(states))

    def _read(self, inputs: TensorInputs) -> Tensor:
        """What the last stage reads, `[T, B, F]`."""
        steps, batch = inputs.first.shape
        features: Tensor = self.encoder(map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs)).view(steps, batch, -1)
        if not self._state_size or not self._feedback:
            return features
        last_reward = inputs.last_reward.clamp(-1.0, 1.0).unsqueeze(-1)
        return torch.cat([features, last_reward, self.distribution.encode(inputs.last_action)], -1)


class PipelineParallel:
    """A cut of a network into two stages, the same in both processes."""

    def __init__(self, network: ActorCritic) -> None:
        """`network`: a whole network."""
        self._network = network
        self.names = [name for name, _ in network.named_parameters()]
        self._by_id = {id(parameter): name for name, parameter in network.named_parameters()}
        self._last = self._cut(network)
        self.partitions = {
            self._by_id[id(value)]: Partition(tuple(value.shape), tuple(value.shape), 0, (0, len(value)))
            for value in self._last.parameters()
        }

    def parts(self, process: int) -> tuple[list[nn.Module], dict[str, nn.Parameter]]:
        """Return the last stage, and its parameters by their names in the whole network."""
        return [self._last], {self._by_id[id(value)]: value for value in self._last.parameters()}

    def divide(self, remote: RemoteBlocks) -> ActorCritic:
        """Return the learner's network, which calls the shard."""
        return FirstStage(self._network, remote)

    def _cut(self, network: ActorCritic) -> LastStage:
        """Move the last layers of the encoder to the last stage, if its only torso feeds the heads directly."""
        torsos = network.encoder.torsos
        if network.core is not None or len(torsos) > 1:
            return LastStage(network, [], "relu")
        torso: Any = torsos[0]
        if isinstance(torso, ImageTorso):
            convolutional: Any = torso.network
            output, convolutional.output = convolutional.output, nn.Identity()
            return LastStage(network, [output], "relu")
        mlp: MLP = torso.mlp
        layers = list(mlp.layers)
        kept = len(layers) // 2
        mlp.layers = nn.ModuleList(layers[:kept])  # type: ignore[assignment]
        return LastStage(network, layers[kept:], mlp.activation)


def why_one_stage(network: nn.Module) -> str:
    """Say why a stock network cannot be cut into two stages; empty if it can."""
    assert isinstance(network, ActorCritic)
    first = sum(parameter.numel() for parameter in PipelineParallel(network).divide(_NONE).parameters())
    return "" if first else "its first stage would have no layers; give --network.hidden at least two layers"


class _NoRemote:
    def open(self, process: int, block: int) -> Any:
        raise AssertionError("this network is only measured")


_NONE = _NoRemote()


def _environments(
    inputs: TensorInputs, chosen: slice, state: tuple[Tensor, ...]
) -> tuple[TensorInputs, tuple[Tensor, ...]]:
    """The inputs and the recurrent state of some environments."""
    part = TensorInputs(
        map_tree(lambda leaf: leaf[:, chosen], inputs.obs),
        inputs.first[:, chosen],
        inputs.last_action[:, chosen],
        inputs.last_reward[:, chosen],
    )
    return part, tuple(each[chosen] for each in state)
