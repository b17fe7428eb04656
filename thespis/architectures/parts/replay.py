"""Replays: the edges to all shards of one, and how a shard is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from thespis import roles
from thespis.core.config import Sequences, Transitions
from thespis.core.edges import ReplayEdges
from thespis.core.program import Handle

if TYPE_CHECKING:
    from thespis.core.config import Experiment, ReplayConfig
    from thespis.core.context import Context
    from thespis.core.edges import Draw, InsertStream, Prioritise
    from thespis.experience.limiters import SamplesPerInsert

Replayed = Transitions | Sequences
"""The items that a replay can hold."""


@dataclass(frozen=True)
class ReplayShards:
    """The edges to a replay or to all of its shards. `learners`: how many have a replay of their own."""

    handles: Sequence[Handle[roles.Replay]]
    items: Replayed
    envs_per_actor: int
    learners: int = 1

    def insert(self, actor: int) -> InsertStream:
        """The insert edge of an actor: the actors of a learner are assigned to its shards in turn."""
        items = self.items.per_insert(self.envs_per_actor)
        return self.handles[actor // self.learners % len(self.handles)].edge(roles.Replay.insert, items=items)

    @property
    def samples(self) -> tuple[Draw, ...]:
        """The sample edges: every shard contributes an equal part of each batch."""
        return self.sampled_by(len(self.handles))

    def sampled_by(self, parts: int) -> tuple[Draw, ...]:
        """The sample edges if a batch is divided into `parts` parts."""
        items = self.items.per_sample // parts
        return tuple(handle.edge(roles.Replay.sample, items=items) for handle in self.handles)

    @property
    def priorities(self) -> tuple[Prioritise, ...]:
        """The edges for new priorities; empty if the replay samples uniformly."""
        prioritised = bool(self.items.replay.priority_exponent)
        return tuple(handle.edge(roles.Replay.prioritise) for handle in self.handles if prioritised)

    @property
    def edges(self) -> tuple[ReplayEdges, ...]:
        """The edges for samples and priorities, by shard."""
        return tuple(ReplayEdges(*each) for each in zip_longest(self.samples, self.priorities))


def build_replay(
    ctx: Context, cfg: Experiment, settings: ReplayConfig, capacity: int, limiter: SamplesPerInsert
) -> roles.Replay:
    """A replay of the algorithm's items; it allocates all its memory here. `settings`: those of one shard."""
    from thespis.experience.replay_parts import build_replay_parts
    from thespis.runs.spaces import spaces_of

    steps, window, sampler, shape = build_replay_parts(cfg.algorithm, spaces_of(cfg), settings, capacity)
    return roles.Replay(ctx, steps, window, sampler, limiter, shape, settings.max_times_sampled)
