"""Runs a policy for an actor: numpy in, numpy out, with weights that are replaced in place."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from thespis.core.errors import ThespisError
from thespis.core.payloads import WeightLayout
from thespis.core.types import Array, Inputs, PolicyOutput, State, map_tree
from thespis.networks.heads import EpsilonGreedy, Explores
from thespis.networks.inputs import TensorInputs, as_tensor
from thespis.networks.numpy.policy import NumpyPolicy, numpy_policy
from thespis.networks.policies import PolicyNetwork

LearningOnly = nn.Module | nn.Parameter
"""A part of a network that only learning reads, such as a critic."""


class PolicyRunner:
    """Steps one policy for B environments at a time, with its own random generator."""

    def __init__(self, network: PolicyNetwork, rng: np.random.Generator) -> None:
        self.network = network
        self._rng = rng
        self._distribution = network.distribution
        self._fast: NumpyPolicy | None = None
        self._looked = False
        self._views = weight_views(network)

    def initial_state(self, batch: int) -> State:
        """Return the recurrent state of `batch` environments at an episode's start."""
        return tuple(part.numpy() for part in self.network.initial_state(batch))

    def act(self, inputs: Inputs, state: State, greedy: bool = False) -> PolicyOutput:
        """Choose an action for each of `[B]` inputs: sampled, or the mode of the distribution if `greedy`."""
        params, states = self._forward(inputs, state)
        distribution = self._distribution
        actions, logp = distribution.mode(params) if greedy else distribution.sample(params, self._rng)
        q = None
        if isinstance(distribution, EpsilonGreedy):
            q = np.stack([params[np.arange(len(params)), actions], params.max(-1)], 1)
        return PolicyOutput(actions, logp, states, q)

    def _forward(self, inputs: Inputs, state: State) -> tuple[Array, State]:
        """Return distribution parameters `[B, P]` and the recurrent state after this step."""
        if not self._looked:
            self._fast, self._looked = numpy_policy(self.network, inputs.obs), True
        if self._fast is not None:
            assert not isinstance(inputs.obs, dict)
            return self._fast(inputs.obs), ()
        with torch.inference_mode():
            return self._forward_torch(inputs, state)

    def _forward_torch(self, inputs: Inputs, state: State) -> tuple[Array, State]:
        tensors = TensorInputs(
            map_tree(_one_step, inputs.obs),
            _one_step(inputs.first),
            _one_step(inputs.last_action),
            _one_step(inputs.last_reward),
        )
        output = self.network.forward(tensors, tuple(as_tensor(part) for part in state))
        params: Array = output.params[0].numpy()
        return params, tuple(part[-1].numpy() for part in output.states)

    def explore(self, amount: float | Array) -> None:
        """Set the exploration amount for all environments or each one: epsilon, or the noise's standard deviation."""
        if not isinstance(self._distribution, Explores):
            raise ThespisError(
                "this network's distribution has no `explore`; add it, as in thespis.networks.heads.EpsilonGreedy"
            )
        self._distribution.explore(amount)

    def load(self, weights: dict[str, Array]) -> None:
        """Copy weights into the network, in place: all, or only those of `layout`."""
        views = self._views
        if len(weights) != len(views):
            views = {name: views[name] for name in self.layout.names}
        copy_weights(weights, views)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(view.nbytes for view in self._views.values())

    @functools.cached_property
    def layout(self) -> WeightLayout:
        """The weights that acting reads."""
        return weight_layout(self.network, self._unread())

    def _unread(self) -> Iterable[LearningOnly]:
        """The parts of the network that acting does not read, if its class says so.

        A subclass of such a class has to say so again, because it may act in another way.
        """
        says = vars(type(self.network)).get("learning_only")
        return () if says is None else says(self.network)


def weight_views(network: PolicyNetwork) -> dict[str, Array]:
    """Return all parameters and buffers by name, as arrays that share the network's memory."""
    return {name: value.numpy() for name, value in network.state_dict().items()}


def weight_layout(network: PolicyNetwork, without: Iterable[LearningOnly] = ()) -> WeightLayout:
    """Return the names and shapes of a network's weights, except those of the parts `without`."""
    assert isinstance(network, nn.Module)
    skipped: set[int] = set()
    for part in without:
        tensors = (*part.parameters(), *part.buffers()) if isinstance(part, nn.Module) else (part,)
        skipped.update(map(id, tensors))
    held = [(name, value) for name, value in network.state_dict(keep_vars=True).items() if id(value) not in skipped]
    rounds = [isinstance(value, nn.Parameter) and value.dtype == torch.float32 for _, value in held]
    return WeightLayout(
        [(name, list(value.shape)) for (name, value), rounded in zip(held, rounds, strict=True) if rounded],
        [name for (name, _), rounded in zip(held, rounds, strict=True) if not rounded],
    )


def export_weights(network: PolicyNetwork) -> dict[str, Array]:
    """Return copies of all parameters and buffers, by name."""
    return {name: view.copy() for name, view in weight_views(network).items()}


def load_weights(network: PolicyNetwork, weights: dict[str, Array]) -> None:
    """Copy weights, as `export_weights` returns them, into a network."""
    copy_weights(weights, weight_views(network))


def copy_weights(weights: dict[str, Array], views: dict[str, Array]) -> None:
    """Copy `weights` into `views` of a network's memory; refuse weights with other names or shapes."""
    if weights.keys() != views.keys():
        raise ThespisError("the weights belong to another network: their names differ; use the run's own config.")
    for name, view in views.items():
        if view.shape != weights[name].shape:
            raise ThespisError(
                f"weight '{name}' has shape {weights[name].shape}, but the network has shape {view.shape}; "
                "use the run's own config."
            )
        np.copyto(view, weights[name])


def _one_step(array: Array) -> torch.Tensor:
    return as_tensor(array).unsqueeze(0)
