"""Policy steps of small networks in numpy: the results of torch in a third of the time.

For a few dozen rows through a small MLP, torch spends nearly all its time on dispatch, not arithmetic. Measured with 32
rows and two layers of 64: 29 us in numpy, 106 us in torch. The numpy path also leaves the caches warm for the
environment.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from thespis.core.types import Array, Tree
from thespis.networks.policies import ActorCritic, PolicyNetwork
from thespis.networks.q import QNetwork
from thespis.networks.torso import VectorTorso

_LARGEST = 256
"""Widest layer for which numpy is faster."""


class NumpyPolicy:
    """The policy of a feed-forward MLP network. It shares the network's memory, so loading weights updates both."""

    def __init__(self, network: ActorCritic | QNetwork, torso: VectorTorso) -> None:
        policy = network.policy if isinstance(network, ActorCritic) else network.advantage
        layers = [*torso.mlp.layers, policy]
        self._layers = [_arrays(layer) for layer in layers]
        self._activation = np.tanh if torso.mlp.activation == "tanh" else lambda x, out: np.maximum(x, 0.0, out=out)
        self._log_std: Array | None = None
        self._value: tuple[Array, Array] | None = None
        if isinstance(network, ActorCritic):
            self._log_std = None if network.log_std is None else network.log_std.detach().numpy()
        elif network.value is not None:
            self._value = _arrays(network.value)

    def __call__(self, obs: Array) -> Array:
        """Return distribution parameters `[B, P]` for observations `[B, ...]`."""
        x = obs.reshape(len(obs), -1)
        *hidden, (weight, bias) = self._layers
        for inner, offset in hidden:
            x = x.dot(inner)  # equals `@`, with less call overhead
            x += offset
            self._activation(x, out=x)
        params: Array = x.dot(weight)
        params += bias
        if self._value is not None:
            params += x @ self._value[0] + self._value[1] - params.mean(-1, keepdims=True)
        if self._log_std is None:
            return params
        return np.concatenate((params, np.broadcast_to(self._log_std, params.shape)), axis=1)


def numpy_policy(network: PolicyNetwork, obs: Tree) -> NumpyPolicy | None:
    """Return a `NumpyPolicy` if `network` is a stock MLP and observations are float32 vectors, otherwise None.

    A subclass of a stock network may override `forward`, so it always runs in torch.
    """
    if type(network) not in (ActorCritic, QNetwork) or isinstance(obs, dict):
        return None
    assert isinstance(network, ActorCritic | QNetwork)
    if network.core is not None:
        return None
    torso = network.encoder.torsos[0]
    if not isinstance(torso, VectorTorso) or torso.normalizer is not None or obs.dtype != np.float32:
        return None
    widest = max((len(layer.bias) for layer in torso.mlp.layers), default=0)
    return NumpyPolicy(network, torso) if widest <= _LARGEST else None


def _arrays(layer: nn.Linear) -> tuple[Array, Array]:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
