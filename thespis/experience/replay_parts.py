"""Builds the parts of a replay from an algorithm's settings, without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Dict

from thespis.algorithms.updates.rewards import shape_rewards
from thespis.core.config import ReplayConfig, RewardConfig, Sequences
from thespis.core.errors import ThespisError
from thespis.core.system.memory import available_memory
from thespis.core.types import Array, Tree
from thespis.envs.spaces import Spaces, action_row, leaves
from thespis.experience.n_step import NStep
from thespis.experience.samplers import Fifo, Prioritised, Sampler, Uniform
from thespis.experience.sequences import SequenceShape, SequenceWindow
from thespis.experience.step_storage import StepLayout, StepStorage
from thespis.experience.window import Window

_SHARE = 0.8
"""Fraction of the free memory that a replay may use; the rest of the run needs some too."""


_TIMES_BYTES = 2
_SAMPLER_BYTES = {"uniform": 1, "fifo": 8, "prioritised": 16}
"""Bytes per step. A leaf of the sum tree takes 8, and its inner nodes 4 to 8."""


class ReplayParts(NamedTuple):
    """Step storage, item window, sampler, and the reward shaping applied before storage."""

    steps: StepStorage
    window: Window
    sampler: Sampler
    shape_rewards: Callable[[Array], Array]


def build_replay_parts(algorithm: Any, spaces: Spaces, cfg: ReplayConfig, capacity: int) -> ReplayParts:
    """Build the parts of a replay for the algorithm's items, with all memory allocated."""
    items, shape = algorithm.items, _shaping(algorithm.reward)
    rows = affordable_rows(algorithm, spaces, cfg, capacity)
    steps, sampler = StepStorage(row_layout(spaces, cfg), rows), build_sampler(cfg, rows)
    if items.KIND == Sequences.KIND:
        sequence = SequenceShape(
            items.sequence_length, items.burn_in, items.unroll_length, items.n_step, algorithm.discount, items.eta
        )
        window = SequenceWindow(sequence, rows, shape, stored=items.state == "stored")
        # Rewards are stored unshaped: a recurrent network reads them unshaped.
        return ReplayParts(steps, window, sampler, lambda rewards: rewards)
    return ReplayParts(steps, NStep(items.n_step, algorithm.discount), sampler, shape)


def affordable_rows(algorithm: Any, spaces: Spaces, cfg: ReplayConfig, capacity: int) -> int:
    """Steps that fit the configured bytes; refuses more than this machine's free memory."""
    items, extra = algorithm.items, 0
    if items.KIND == Sequences.KIND:
        # Bytes of sequences beyond the steps: an index, and a share of the state stored once per unroll.
        extra = 8 + -(-(2 * 4 * algorithm.network.lstm + 12) // items.unroll_length)
    return affordable(cfg, row_layout(spaces, cfg), capacity, extra)


def _shaping(reward: RewardConfig) -> Callable[[Array], Array]:
    return lambda rewards: shape_rewards(rewards, reward.kind, reward.scale)


def affordable(cfg: ReplayConfig, layout: StepLayout, capacity: int, extra: int = 0) -> int:
    """Steps that fit the configured bytes; refuses more than this machine's free memory.

    `extra`: bytes per step beyond the layout.
    """
    per_row = extra + layout.row_bytes + _SAMPLER_BYTES[sampling(cfg)] + _TIMES_BYTES
    rows = min(capacity, cfg.bytes // per_row) if cfg.bytes else capacity
    if cfg.warm_up > rows:
        raise ThespisError(
            f"{cfg.bytes:,} bytes hold {rows:,} steps of {per_row:,} bytes, fewer than the warm-up of {cfg.warm_up:,}; "
            "raise --replay.bytes or lower --replay.warm-up"
        )
    free = available_memory()
    if rows * per_row > _SHARE * free:
        raise ThespisError(
            f"a replay of {rows:,} steps of {per_row:,} bytes takes {rows * per_row / 1e9:.1f} GB, but only "
            f"{free / 1e9:.1f} GB are free; give --replay.bytes {int(_SHARE * free)} or a lower --replay.capacity"
        )
    return rows


def sampling(cfg: ReplayConfig) -> str:
    """Name of the configured sampler."""
    if cfg.sampler == "fifo":
        return "fifo"
    return "prioritised" if cfg.priority_exponent else "uniform"


def build_sampler(cfg: ReplayConfig, capacity: int) -> Sampler:
    """Build the configured sampler."""
    if sampling(cfg) == "prioritised":
        return Prioritised(capacity, cfg.priority_exponent, cfg.importance_exponent)
    return Fifo(capacity) if sampling(cfg) == "fifo" else Uniform(capacity)


def row_layout(spaces: Spaces, cfg: ReplayConfig) -> StepLayout:
    """The layout of a stored row for these spaces."""
    rows = {leaf.key or "": np.empty(leaf.shape, leaf.dtype) for leaf in leaves(spaces.observation_space)}
    obs: Tree = rows if isinstance(spaces.observation_space, Dict) else rows[""]
    return StepLayout.of(obs, action_row(spaces.action_space), values=cfg.actor_priorities)
