"""Statistics that learners with a replay share: importance weights and observation moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thespis.core.types import Array, ReplaySample, SequenceBatch, map_tree
from thespis.networks.inputs import TensorTree, as_tensors
from thespis.networks.normalize import collect_moments, merge_moments
from thespis.networks.policies import Agent, PolicyNetwork


class ReplayStatistics:
    """Part of an update: feeds running statistics, and divides importance weights by the largest of all learners."""

    network: PolicyNetwork
    prioritised: bool
    """Whether batches have importance weights."""
    _gathered: Sequence[Array] | None = None
    """Statistics of the current batches of all learners; None if there is one learner."""

    def rows(self, part: ReplaySample) -> int:
        """Number of items of a batch, of which the loss is a mean."""
        return len(part.weights)

    def statistics(self, part: ReplaySample) -> Array:
        """The largest importance weight, and the moments of the observations if they are normalised."""
        moments = collect_moments(self.network, lambda: self._observe(part))
        if not self.prioritised and not moments.size:
            return np.empty(0)
        return np.concatenate([[part.weights.max()], moments])

    def merge(self, part: ReplaySample, statistics: Sequence[Array]) -> None:
        """Divide the importance weights by the largest of all learners."""
        self._gathered = statistics
        part.weights = part.weights / np.float32(max(each[0] for each in statistics))

    def observe_batch(self, batch: ReplaySample) -> None:
        """Update the network's running statistics with the observations of all learners' batches."""
        if self._gathered is None:
            self._observe(batch)
        else:
            merge_moments(self.network, [each[1:] for each in self._gathered])

    def _observe(self, batch: ReplaySample) -> None:
        if isinstance(self.network, Agent):
            self.network.observe(_observations(batch))


def _observations(batch: ReplaySample) -> TensorTree:
    """The observations `[T, B, ...]` of a batch; transitions are one step of many environments."""
    if isinstance(batch, SequenceBatch):
        return as_tensors(batch.inputs.obs)
    return as_tensors(map_tree(lambda leaf: leaf[None], batch.obs))
