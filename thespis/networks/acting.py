"""Acting: numpy in, numpy out, on weights that are replaced in place."""

from __future__ import annotations

import numpy as np
import torch

from thespis.core.errors import ThespisError
from thespis.core.types import Acted, Array, Inputs, State, map_tree
from thespis.networks.fast import NumpyPolicy, numpy_policy
from thespis.networks.heads import EpsilonGreedy, Explores
from thespis.networks.inputs import TensorInputs, as_tensor
from thespis.networks.policies import PolicyNetwork


class Stepper:
    """One policy, stepped for B environments at a time with a random stream of its own."""

    def __init__(self, network: PolicyNetwork, rng: np.random.Generator) -> None:
        self.network = network
        self._rng = rng
        self._distribution = network.distribution
        self._fast: NumpyPolicy | None = None
        self._looked = False
        self._views = weight_views(network)

    def initial_state(self, batch: int) -> State:
        """Recurrent state of `batch` environments at an episode start."""
        return tuple(part.numpy() for part in self.network.initial_state(batch))

    def act(self, inputs: Inputs, state: State, greedy: bool = False) -> Acted:
        """Choose an action for each of `[B]` inputs: drawn, or the likeliest if `greedy`."""
        params, states = self._forward(inputs, state)
        draw = self._distribution
        actions, logp = draw.mode(params) if greedy else draw.sample(params, self._rng)
        q = None
        if isinstance(draw, EpsilonGreedy):
            q = np.stack([params[np.arange(len(params)), actions], params.max(-1)], 1)
        return Acted(actions, logp, states, q)

    def _forward(self, inputs: Inputs, state: State) -> tuple[Array, State]:
        """Distribution parameters `[B, P]` and the state after this step."""
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
        """Set how much the policy explores, for all environments or for each: an epsilon, or a deviation of noise."""
        if not isinstance(self._distribution, Explores):
            raise ThespisError(
                "this network's distribution has no `explore`; give it one, such as that of EpsilonGreedy"
            )
        self._distribution.explore(amount)

    def load(self, weights: dict[str, Array]) -> None:
        """Copy weights over the network's own, in place."""
        copy_weights(weights, self._views)


def weight_views(network: PolicyNetwork) -> dict[str, Array]:
    """The memory of all parameters and buffers, by name."""
    return {name: value.numpy() for name, value in network.state_dict().items()}


def export_weights(network: PolicyNetwork) -> dict[str, Array]:
    """Copies of all parameters and buffers, by name."""
    return {name: view.copy() for name, view in weight_views(network).items()}


def load_weights(network: PolicyNetwork, weights: dict[str, Array]) -> None:
    """The inverse of `export_weights`, in place."""
    copy_weights(weights, weight_views(network))


def copy_weights(weights: dict[str, Array], views: dict[str, Array]) -> None:
    """Copy `weights` into `views` of a network's memory, refusing those of another network."""
    if weights.keys() != views.keys():
        raise ThespisError("the weights are of another network: their names differ; use the run's own config.")
    for name, view in views.items():
        if view.shape != weights[name].shape:
            raise ThespisError(
                f"weight '{name}' has shape {weights[name].shape}, the network wants {view.shape}; "
                "use the run's own config."
            )
        np.copyto(view, weights[name])


def _one_step(array: Array) -> torch.Tensor:
    return as_tensor(array).unsqueeze(0)
