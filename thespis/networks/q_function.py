"""A Q-function Q(x, a) of any action, and a policy that searches for the best action without an actor network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from thespis.core.errors import ThespisError
from thespis.core.types import Array, map_tree
from thespis.envs.spaces import action_parts, action_row
from thespis.networks.cem import ActionParts, Score, search, split, uniform
from thespis.networks.configs import CEMConfig, DPGNetworkConfig, QFunctionConfig
from thespis.networks.dpg import Critic
from thespis.networks.heads import NoDensity, as_vectors
from thespis.networks.inputs import TensorInputs, TensorTree
from thespis.networks.policies import NetworkOutput

_GREEDY_SEED = 0
"""Seed of greedy searches: they draw the same samples every time, so the action is a function of the observation."""


class ActionEncoding:
    """Converts policy actions of a space to the vectors that a critic reads, and back."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.parts = action_parts_of(space)
        row = action_row(space)
        self._shape, self._dtype = row.shape, row.dtype

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions `[..., *action]` as vectors `[..., width]`."""
        numbers = self.parts.continuous
        flat = as_vectors(actions, self._shape)
        chosen = zip(flat[..., numbers:].long().unbind(-1), self.parts.choices, strict=True)
        one_hots = [nn.functional.one_hot(column, n).float() for column, n in chosen]
        return torch.cat([flat[..., :numbers].float(), *one_hots], -1)

    def decode(self, vectors: Array) -> Array:
        """Return vectors `[N, width]` as actions `[N, *action]`."""
        chosen = [part.argmax(-1)[:, None] for part in split(vectors, self.parts)]
        columns = np.concatenate([vectors[:, : self.parts.continuous], *chosen], 1)
        return columns.astype(self._dtype).reshape(-1, *self._shape)


class CEMPolicy(NoDensity):
    """Takes the action with the highest Q-value, found by the cross-entropy method.

    The distribution parameters are the critic's features of the observation. `sample` adds normal noise with standard
    deviation `noise` to continuous parts, and takes a uniformly random action with probability `epsilon`; the actor
    sets both. The actions have no density, so log-probabilities and entropy are 0.
    """

    def __init__(self, critic: Critic, code: ActionEncoding, cfg: CEMConfig) -> None:
        self._critic, self._code, self._cfg = critic, code, cfg
        self.size, self.features = critic.encoder.size, code.parts.width
        self.noise = 0.0
        self.epsilon: float | Array = 0.0

    def explore(self, amount: float | Array) -> None:
        """Set epsilon."""
        self.epsilon = amount

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the best actions with exploration noise, and zeros."""
        rows, parts = len(params), self._code.parts
        best, _ = self.best(params, rng)
        noise = np.float32(self.noise) * rng.standard_normal((rows, parts.continuous), np.float32)
        best[:, : parts.continuous] = (best[:, : parts.continuous] + noise).clip(-1.0, 1.0)
        explores = rng.random((rows, 1)) < self.epsilon
        return self._decided(np.where(explores, uniform(rows, parts, rng), best))

    def mode(self, params: Array) -> tuple[Array, Array]:
        """Return the best actions, and zeros."""
        return self._decided(self.best(params, np.random.default_rng(_GREEDY_SEED))[0])

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions as the vectors that the critic reads."""
        return self._code.encode(actions)

    def best(self, features: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the best action vectors `[N, width]` for the encoder's `features`, and their Q-values `[N]`."""
        return search(q_scores(self._critic, features), len(features), self._code.parts, self._cfg, rng)

    def _decided(self, vectors: Array) -> tuple[Array, Array]:
        return self._code.decode(vectors), np.zeros(len(vectors), np.float32)


class QFunctionNetwork(nn.Module):
    """A critic without an actor. `NetworkOutput.params` are the critic's features; `distribution` searches the action.

    `NetworkOutput.values` are 0: a state value would take a search, and no algorithm uses it.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], cfg: QFunctionConfig
    ) -> None:
        super().__init__()
        code = ActionEncoding(action_space)
        plan = DPGNetworkConfig(torso=cfg.torso, activation=cfg.activation, critic_hidden=cfg.hidden)
        self.critic = Critic(observation_space, code.parts.width, plan)
        self.distribution = CEMPolicy(self.critic, code, cfg.cem)

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return an empty state: the network is feed-forward."""
        return ()

    def forward(self, inputs: TensorInputs, state: tuple[Tensor, ...]) -> NetworkOutput:
        """Return features of each observation as distribution parameters, and zero values."""
        steps, batch = inputs.first.shape
        obs: TensorTree = map_tree(lambda leaf: leaf.flatten(0, 1), inputs.obs)
        return NetworkOutput(self.critic.encoder(obs).view(steps, batch, -1), torch.zeros(steps, batch), ())


def q_scores(critic: Critic, features: Array) -> Score:
    """Return a function that computes Q-values of actions for the encoder's `features` `[N, F]`.

    The features' share of the first joint layer is computed once, not once per sample. The function runs in numpy and
    reads the critic's current weights.
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


def action_parts_of(space: spaces.Space[Any]) -> ActionParts:
    """Return the continuous and discrete parts of an action of `space`; refuse spaces that cannot be searched."""
    if isinstance(space, spaces.Discrete):
        return ActionParts(0, (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionParts(0, tuple(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if not space.is_bounded():
            raise ThespisError(
                f"actions are searched within their bounds, but some dimensions of {space} have none; "
                "wrap the environment with gymnasium.wrappers.RescaleAction or ClipAction"
            )
        return ActionParts(int(np.prod(space.shape)))
    if isinstance(space, spaces.Tuple | spaces.Dict):
        boxes, choices = action_parts(space)
        return ActionParts(
            sum(action_parts_of(box).continuous for box in boxes), tuple(int(choice.n) for choice in choices)
        )
    raise ThespisError(
        f"actions of {space} cannot be searched; wrap the environment so that they are Discrete, MultiDiscrete, a Box "
        "of floats, or a flat Tuple or Dict of Discrete and Boxes"
    )
