"""Minibatches of unrolls, for updates that use each batch several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from thespis.core.types import map_tree
from thespis.networks.inputs import TensorInputs


@dataclass(slots=True)
class Minibatch:
    """Rows `[T, B]` of a batch, with log-probabilities and values from before the update.

    `state`: recurrent state before row 0, each part `[B, ...]`. `targets`: value targets. `valid`: bool; false rows
    only carry the recurrent state.
    """

    inputs: TensorInputs
    state: tuple[Tensor, ...]
    actions: Tensor
    old_logp: Tensor
    old_values: Tensor
    advantages: Tensor
    targets: Tensor
    valid: Tensor
    advantage_moments: tuple[float, float] | None = None
    """Mean and standard deviation of the advantages of all learners' minibatches; None if there is one learner."""

    @property
    def rows(self) -> int:
        """Number of rows, T * B."""
        return self.valid.numel()

    def explained_variance(self) -> float:
        """Explained variance of the targets by the old values, over valid rows."""
        return explained_variance(self.old_values[self.valid], self.targets[self.valid]).item()

    def columns(self, chosen: Tensor) -> Minibatch:
        """All steps of the environments `chosen`, int64 `[N]`."""

        def take(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, chosen)

        state = tuple(part.index_select(0, chosen) for part in self.state)
        return replace(self._map(take), state=state)

    def flat(self) -> Minibatch:
        """The valid rows as one step of many environments. A feed-forward network does not need their order."""
        (chosen,) = self.valid.flatten().nonzero(as_tuple=True)
        every = len(chosen) == self.valid.numel()

        def lay(leaf: Tensor) -> Tensor:
            rows = leaf.flatten(0, 1)
            return (rows if every else rows.index_select(0, chosen)).unsqueeze(0)

        return self._map(lay)

    def shuffled(self, rng: np.random.Generator, number: int) -> Iterator[Minibatch]:
        """One epoch: distribute the columns over `number` minibatches, or fewer if there are fewer columns."""
        columns = self.valid.shape[1]
        for chosen in torch.from_numpy(rng.permutation(columns)).tensor_split(number):
            part = self if len(chosen) == columns else self.columns(chosen)
            if part.rows:
                yield part

    def _map(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """Apply `change` to every tensor `[T, B, ...]`."""
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


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """1 - Var(targets - values) / Var(targets), over rows `[N]`: 1 for perfect values, 0 for a constant or no rows."""
    if not len(targets):
        return torch.zeros(())
    return 1.0 - (targets - values).var(correction=0) / targets.var(correction=0).clamp(min=1e-8)
