"""The PPO update (Schulman et al., 2017, arXiv:1707.06347): several epochs on one batch, held near its policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.gae import gae
from thespis.algorithms.policy_update import PolicySettings, PolicyUpdate, dot, explained_variance
from thespis.errors import NonFiniteLoss
from thespis.networks.inputs import TensorInputs, as_tensor, tensor_inputs
from thespis.networks.policies import PolicyNetwork
from thespis.types import Unroll, map_tree


class PPOSettings(PolicySettings, Protocol):
    """What `PPOUpdate` reads. `minibatches`: per epoch. `value_clip` 0 and `target_kl` None switch these off."""

    @property
    def epochs(self) -> int: ...
    @property
    def minibatches(self) -> int: ...
    @property
    def clip(self) -> float: ...
    @property
    def value_clip(self) -> float: ...
    @property
    def target_kl(self) -> float | None: ...
    @property
    def gae_lambda(self) -> float: ...


@dataclass(slots=True)
class Minibatch:
    """Rows `[T, B]` of a batch, and what the policy that made them thought of them.

    `state`: recurrent state before row 0, each part `[B, ...]`. `old_logp`, `old_values`: before the update.
    `targets`: what values should become. `valid`: bool, false rows only carry the recurrent state on.
    """

    inputs: TensorInputs
    state: tuple[Tensor, ...]
    actions: Tensor
    old_logp: Tensor
    old_values: Tensor
    advantages: Tensor
    targets: Tensor
    valid: Tensor

    @property
    def rows(self) -> int:
        return self.valid.numel()

    def columns(self, chosen: Tensor) -> Minibatch:
        """The environments `chosen`, int64 `[N]`, for all of their steps."""

        def take(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, chosen)

        state = tuple(part.index_select(0, chosen) for part in self.state)
        return replace(self._map(take), state=state)

    def flat(self) -> Minibatch:
        """The valid rows as one step of as many environments: without memory the order of steps says nothing."""
        (chosen,) = self.valid.flatten().nonzero(as_tuple=True)
        every = len(chosen) == self.valid.numel()

        def lay(leaf: Tensor) -> Tensor:
            rows = leaf.flatten(0, 1)
            return (rows if every else rows.index_select(0, chosen)).unsqueeze(0)

        return self._map(lay)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """Change every tensor that has both axes."""
        inputs = self.inputs
        return Minibatch(
            TensorInputs(
                map_tree(change, inputs.obs),
                change(inputs.first),
                change(inputs.last_action),
                change(inputs.last_reward),
            ),
            self.state,
            change(self.actions),
            change(self.old_logp),
            change(self.old_values),
            change(self.advantages),
            change(self.targets),
            change(self.valid),
        )


class PPOUpdate(PolicyUpdate[PPOSettings]):
    """Divides a batch into minibatches, again for every epoch, and turns each into gradients.

    A learner gives it a batch by `minibatches`, and what comes out to `gradients`, one step after the other. The rows
    of a recurrent network stay in their order: its minibatches are made of environments, the others' of single steps.
    """

    def __init__(self, network: PolicyNetwork, cfg: PPOSettings, rng: np.random.Generator) -> None:
        """`rng`: shuffles."""
        super().__init__(network, cfg)
        self._rng = rng
        self._recurrent = bool(network.initial_state(1))
        self._kl = 0.0
        self._explained = 0.0

    def minibatches(self, batch: Unroll) -> Iterator[tuple[int, Minibatch]]:
        """Every minibatch of every epoch, with its number of rows; in each epoch each row comes once.

        Ends early when the step before found the policy further than `target_kl` from the one that acted.
        """
        cfg, whole = self._cfg, self._prepare(batch)
        columns = whole.valid.shape[1]
        self._kl = 0.0
        for _ in range(cfg.epochs):
            shuffled = torch.from_numpy(self._rng.permutation(columns))
            for chosen in shuffled.tensor_split(cfg.minibatches):
                if cfg.target_kl is not None and self._kl > cfg.target_kl:
                    return
                part = whole if len(chosen) == columns else whole.columns(chosen)
                if part.rows:
                    yield part.rows, part

    def gradients(self, part: Minibatch, want_metrics: bool = False) -> tuple[list[Tensor], dict[str, float]]:
        """Gradients in the order of `parameters`, and metrics by name (empty unless wanted)."""
        cfg = self._cfg
        output = self.network.forward(part.inputs, part.state)
        logp, entropy = self.network.distribution.evaluate(output.params, part.actions)
        values = output.values
        with torch.no_grad():
            weight = part.valid.to(values.dtype)
            weight /= weight.sum().clamp(min=1.0)
            log_ratio = (logp - part.old_logp).masked_fill_(~part.valid, 0.0)
            ratio = log_ratio.exp()
            objective, pull = clipped_surrogate(ratio, normalised(part.advantages, weight), cfg.clip)
            error, push = clipped_value_loss(values, part.old_values, part.targets, cfg.value_clip)
            # dL/dlogp, dL/dentropy and dL/dV of the loss below: cheaper than to let autograd find them.
            slopes = (pull * -weight, weight * -cfg.entropy_cost, push * weight * cfg.value_cost)
            # An unbiased estimate of the divergence that is never negative: mean of ratio - 1 - log ratio.
            kl = dot(weight, (ratio - 1.0).sub_(log_ratio))
            losses = torch.stack((-dot(weight, objective), dot(weight, error), dot(weight, entropy), kl))
        policy_loss, value_loss, bonus, self._kl = losses.tolist()
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * bonus
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"loss {loss} (policy {policy_loss}, value {value_loss}, entropy {bonus})")
        gradients = self._descent((logp, entropy, values), slopes)
        metrics: dict[str, float] = {}
        if want_metrics:
            outside = dot(weight, ((ratio - 1.0).abs() > cfg.clip).to(weight.dtype)).item()
            metrics = {
                "train/loss": loss,
                "train/policy_loss": policy_loss,
                "train/value_loss": value_loss,
                "train/entropy": bonus,
                "train/approx_kl": self._kl,
                "train/clip_fraction": outside,
                "train/explained_variance": self._explained,
            }
        return gradients, metrics

    @torch.no_grad()
    def _prepare(self, batch: Unroll) -> Minibatch:
        """The whole batch as one minibatch, with advantages by the values before the update."""
        cfg, inputs = self._cfg, tensor_inputs(batch.inputs)
        state = tuple(as_tensor(part) for part in batch.state)
        output = self.network.forward(inputs, state)
        values, valid, terminated = output.values[:-1], as_tensor(batch.valid), as_tensor(batch.terminated)
        advantages = gae(
            values,
            self._next_values(batch, output),
            self._rewards(batch),
            (~terminated).to(values.dtype) * cfg.discount,
            terminated | as_tensor(batch.truncated),
            cfg.gae_lambda,
            valid,
        )
        steps = TensorInputs(
            map_tree(lambda leaf: leaf[:-1], inputs.obs),
            inputs.first[:-1],
            inputs.last_action[:-1],
            inputs.last_reward[:-1],
        )
        targets = values + advantages
        if valid.any():
            self._explained = explained_variance(values[valid], targets[valid]).item()
        actions, old_logp = as_tensor(batch.actions), as_tensor(batch.behaviour_logp)
        whole = Minibatch(steps, state, actions, old_logp, values, advantages, targets, valid)
        return whole if self._recurrent else whole.flat()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """min(ratio * A, clip(ratio) * A), and its derivative by log pi, which is 0 where the clip has the say."""
    free = ratio * advantages
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantages)
    return torch.minimum(free, bounded), free.masked_fill(bounded < free, 0.0)


def clipped_value_loss(values: Tensor, old: Tensor, targets: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Half the squared error and its derivative by the values.

    With `clip` the error is the larger one of the value and of the value held within `clip` of the old one, so that
    a value which has moved that far towards its target is pulled no further (OpenAI Baselines; 0: no such limit).
    """
    error = values - targets
    if not clip:
        return 0.5 * error * error, error
    held = (values - old).clamp_(-clip, clip).add_(old).sub_(targets)
    square, held_square = error * error, held * held
    return 0.5 * torch.maximum(square, held_square), error.masked_fill(square < held_square, 0.0)


def normalised(advantages: Tensor, weight: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the rows of a minibatch; `weight`: of each row, 1 in all."""
    centred = advantages - dot(weight, advantages)
    return centred / (dot(weight, centred * centred).sqrt() + 1e-8)
