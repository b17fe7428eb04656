"""Q(x, a) of any action, and a policy that searches for the best one: no network says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.core.types import Array, map_tree
from thespis.envs.spaces import action_parts, action_row
from thespis.networks.cem import Parts, Score, search, split, uniform
from thespis.networks.configs import CEMConfig, DPGNetworkConfig, ScoredNetworkConfig
from thespis.networks.dpg import Critic
from thespis.networks.heads import as_vectors, no_density
from thespis.networks.inputs import TensorInputs, TensorTree
from thespis.networks.policies import Output

_GREEDY_SEED = 0
"""A greedy search draws the same samples every time, so that it is a function of the observation."""


class ActionCode:
    """Actions of a space, in a policy's units, as the vectors that a critic reads, and back."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.parts = parts_of(space)
        row = action_row(space)
        self._shape, self._dtype = row.shape, row.dtype

    def encode(self, actions: Tensor) -> Tensor:
        """Actions `[..., *action]` as `[..., width]`."""
        numbers = self.parts.continuous
        flat = as_vectors(actions, self._shape)
        chosen = zip(flat[..., numbers:].long().unbind(-1), self.parts.choices, strict=True)
        one_hots = [nn.functional.one_hot(column, n).float() for column, n in chosen]
        return torch.cat([flat[..., :numbers].float(), *one_hots], -1)

    def decode(self, vectors: Array) -> Array:
        """Vectors `[N, width]` as actions `[N, *action]`."""
        chosen = [part.argmax(-1)[:, None] for part in split(vectors, self.parts)]
        columns = np.concatenate([vectors[:, : self.parts.continuous], *chosen], 1)
        return columns.astype(self._dtype).reshape(-1, *self._shape)


class Searched:
    """The action that the critic scores best, found by the cross-entropy method; parameters are the critic's features.

    When drawn rather than taken greedily, normal noise of deviation `noise` is added to numbers, and with probability
    `epsilon` any action is taken instead. Whoever acts sets both. There is no density: log-probabilities and entropy
    are 0.
    """

    def __init__(self, critic: Critic, code: ActionCode, cfg: CEMConfig) -> None:
        self._critic, self._code, self._cfg = critic, code, cfg
        self.size, self.features = critic.encoder.size, code.parts.width
        self.noise = 0.0
        self.epsilon: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        self.epsilon = amount

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return no_density(params)

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        rows, parts = len(params), self._code.parts
        best, _ = self.best(params, rng)
        noise = np.float32(self.noise) * rng.standard_normal((rows, parts.continuous), np.float32)
        best[:, : parts.continuous] = (best[:, : parts.continuous] + noise).clip(-1.0, 1.0)
        explores = rng.random((rows, 1)) < self.epsilon
        return self._decided(np.where(explores, uniform(rows, parts, rng), best))

    def mode(self, params: Array) -> tuple[Array, Array]:
        return self._decided(self.best(params, np.random.default_rng(_GREEDY_SEED))[0])

    def encode(self, actions: Tensor) -> Tensor:
        return self._code.encode(actions)

    def best(self, features: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The best action vectors `[N, width]` where the critic's encoder made `features`, and their scores `[N]`."""
        return search(scores(self._critic, features), len(features), self._code.parts, self._cfg, rng)

    def _decided(self, vectors: Array) -> tuple[Array, Array]:
        return self._code.decode(vectors), np.zeros(len(vectors), np.float32)


class ScoredNetwork(nn.Module):
    """A critic alone. `Output.params` are features of the observation, from which `distribution` searches an action.

    `Output.values` are 0: what an observation is worth takes a search, and nobody here asks for it.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: ScoredNetworkConfig
    ) -> None:
        super().__init__()
        code = ActionCode(action_space)
        plan = DPGNetworkConfig(torso=cfg.torso, activation=cfg.activation, critic_hidden=cfg.hidden)
        self.critic = Critic(observation_space, code.parts.width, plan)
        self.distribution = Searched(self.critic, code, cfg.cem)

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return ()

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> Output:
        steps, batch = inputs.first.shape
        obs: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs)
        return Output(self.critic.encoder(obs).view(steps, batch, -1), torch.zeros(steps, batch), ())


def scores(critic: Critic, features: Array) -> Score:
    """How `critic` scores actions where its encoder made `features` `[N, F]` of the observation.

    What the first joint layer makes of the features is computed once, not once per sample. In numpy, on the critic's
    memory as it is now.
    """
    (weight, bias), *others = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        for layer in (*critic.joint.layers, critic.output)
    ]
    known = features.shape[1]
    seen, of_action = (features @ weight[:known] + bias)[:, None], np.ascontiguousarray(weight[known:])
    tanh = critic.joint.activation == "tanh"

    def score(actions: Array) -> Array:
        x = actions @ of_action
        x += seen
        for inner, offset in others:
            x = (np.tanh(x, out=x) if tanh else np.maximum(x, 0.0, out=x)) @ inner
            x += offset
        values: Array = x[..., 0]
        return values

    return score


def parts_of(space: spaces.Space[Any]) -> Parts:
    """What an action of `space` is made of; refuses what cannot be searched."""
    if isinstance(space, spaces.Discrete):
        return Parts(0, (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return Parts(0, tuple(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if not space.is_bounded():
            raise ThespisError(
                f"actions are searched within their bounds, but some of {space} have none; "
                "wrap the environment with gymnasium.wrappers.RescaleAction or ClipAction"
            )
        return Parts(int(np.prod(space.shape)))
    if isinstance(space, spaces.Tuple | spaces.Dict):
        boxes, choices = action_parts(space)
        return Parts(sum(parts_of(box).continuous for box in boxes), tuple(int(choice.n) for choice in choices))
    raise ThespisError(
        f"actions of {space} cannot be searched; wrap the environment so that they are Discrete, MultiDiscrete, a Box "
        "of floats, or a flat Tuple or Dict of Discrete and Boxes"
    )
