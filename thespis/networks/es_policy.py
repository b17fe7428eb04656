"""The network of evolution strategies: a policy without a value function, with virtual batch norm for images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, Tree, map_tree
from thespis.networks.configs import ESNetworkConfig
from thespis.networks.heads import DiagGaussian, build_distribution
from thespis.networks.init import orthogonal
from thespis.networks.inputs import TensorInputs, as_tensors
from thespis.networks.normalize import Normalizer
from thespis.networks.policies import Agent, NetworkOutput, PolicyNetwork
from thespis.networks.policy_runner import PolicyRunner, export_weights, load_weights
from thespis.networks.running_moments import Moments


class ESNetwork(Agent):
    """A policy with one linear head, initialised to zero. Evolution strategies need neither values nor deviations."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: ESNetworkConfig
    ) -> None:
        super().__init__(observation_space, build_distribution(action_space), cfg)
        gaussian = isinstance(self.distribution, DiagGaussian)
        self._pad = self.distribution.features if gaussian else 0  # log-stds, which are never used
        self.policy = orthogonal(nn.Linear(self.size, self.distribution.size - self._pad), 0.0)
        if cfg.virtual_batch_norm:
            add_virtual_batch_norm(self)

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return distribution parameters at each of `[T, B]` inputs, and zero values."""
        steps, batch = inputs.first.shape
        features, states = self.features(inputs, state)
        params = nn.functional.pad(self.policy(features), (0, self._pad))
        return NetworkOutput(params.view(steps, batch, -1), params.new_zeros(steps, batch), states)


class VirtualBatchNorm(nn.Module):
    """Normalises each channel by the statistics of a fixed reference batch in this very network.

    Without it, most perturbed deep networks ignore their inputs (Salimans et al., 2017).
    """

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.gathering = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `[N, channels, H, W]`; with `gathering`, first take the statistics from `x`."""
        if self.gathering:
            self.mean.copy_(x.mean((0, 2, 3)))
            self.var.copy_(x.var((0, 2, 3), correction=0))
        normal = (x - self.mean[:, None, None]) * (self.var + 1e-5).rsqrt()[:, None, None]
        return normal * self.scale[:, None, None] + self.offset[:, None, None]


def add_virtual_batch_norm(module: nn.Module) -> None:
    """Insert virtual batch normalisation after every convolution of `module`."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            setattr(module, name, nn.Sequential(child, VirtualBatchNorm(child.out_channels)))
        else:
            add_virtual_batch_norm(child)


def reference_needed(network: PolicyNetwork) -> bool:
    """Whether the network has virtual batch normalisation, which needs a reference batch."""
    return bool(_normalisations(network))


def calibrate(network: PolicyNetwork, reference: Tree) -> None:
    """Recompute the statistics of all virtual batch normalisations from `[N, ...]` observations."""
    with _gathering(_normalisations(network)), torch.inference_mode():
        rows = len(next(iter(reference.values())) if isinstance(reference, dict) else reference)
        obs = map_tree(lambda leaf: leaf.unsqueeze(0), as_tensors(reference))
        none = torch.zeros(1, rows)
        network.forward(TensorInputs(obs, none.bool(), none.long(), none), ())


class BatchedTorchPolicy:
    """Runs any feed-forward network, one copy per policy, in sequence: for images, arithmetic dominates anyway."""

    def __init__(self, number: int, make: Callable[[], PolicyNetwork], reference: Tree | None) -> None:
        networks = [make() for _ in range(number)]
        size = sum(parameter.numel() for parameter in networks[0].parameters())
        self.parameters: Array = np.zeros((number, size), np.float32)
        for network, row in zip(networks, self.parameters, strict=True):
            bind_parameters(network, row)
        self._networks, self._reference = networks, reference
        self._runners = [PolicyRunner(network, np.random.default_rng(0)) for network in networks]

    def begin(self, moments: Moments | None) -> None:
        """Recompute the statistics of virtual batch normalisation."""
        if self._reference is not None:
            for network in self._networks:
                calibrate(network, self._reference)

    def act(self, obs: Tree) -> Array:
        """Return the greedy action of each policy."""
        actions = []
        for index, runner in enumerate(self._runners):
            row = map_tree(lambda leaf, at=index: leaf[at : at + 1], obs)
            actions.append(runner.act(_inputs(row), (), greedy=True).actions)
        return np.concatenate(actions)


class ESPolicy:
    """The unperturbed policy. `values` is a flat view of its parameters, so writing to `values` changes the policy."""

    def __init__(self, network: PolicyNetwork, reference: Tree | None) -> None:
        if network.initial_state(1):
            raise ThespisError("evolution strategies train feed-forward networks here; leave the recurrent part out")
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
        self.values: Array = flat.numpy()
        self._network, self._reference = network, reference
        bind_parameters(network, self.values)

    def weights(self, moments: Moments | None) -> dict[str, Array]:
        """Return the weights to publish, including the normalisation statistics."""
        if self._reference is not None:
            calibrate(self._network, self._reference)
        for part in _modules(self._network, Normalizer):
            assert moments is not None
            part.mean.copy_(torch.from_numpy(moments.mean))
            part.var.copy_(torch.from_numpy(moments.var))
            part.count.fill_(moments.number)
        return export_weights(self._network)

    def load(self, weights: dict[str, Array]) -> None:
        """Copy published weights into the policy."""
        load_weights(self._network, weights)


def moments_of(network: PolicyNetwork) -> Moments | None:
    """Return the normalisation statistics in a network's weights, e.g. from an earlier run; None if it has none."""
    for part in _modules(network, Normalizer):
        if part.count:
            return Moments(int(part.count), part.mean.numpy().copy(), part.var.numpy().copy())
    return None


def bind_parameters(network: PolicyNetwork, flat: Array) -> None:
    """Make the network's parameters views of the vector `flat`, and so give them its values."""
    memory, start = torch.from_numpy(flat), 0
    for parameter in network.parameters():
        end = start + parameter.numel()
        parameter.data = memory[start:end].view(parameter.shape)
        start = end


def _inputs(obs: Tree) -> Inputs:
    none = np.zeros(1, np.float32)
    return Inputs(obs, np.zeros(1, np.bool_), none, none)


def _modules(network: PolicyNetwork, kind: type[Any]) -> list[Any]:
    assert isinstance(network, nn.Module)
    return [part for part in network.modules() if isinstance(part, kind)]


def _normalisations(network: PolicyNetwork) -> Sequence[VirtualBatchNorm]:
    return _modules(network, VirtualBatchNorm)


@contextmanager
def _gathering(parts: Iterable[VirtualBatchNorm]) -> Iterator[None]:
    for part in parts:
        part.gathering = True
    try:
        yield
    finally:
        for part in parts:
            part.gathering = False
