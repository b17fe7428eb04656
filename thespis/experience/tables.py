"""A replay table from a config, for the builders of several architectures; its process does without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from gymnasium.spaces import Dict

from thespis.algorithms.rewards import shape_rewards
from thespis.config import NetworkConfig, ReplayConfig, RewardConfig, Spec, resolve
from thespis.envs.make import describe
from thespis.envs.spaces import Spaces, action_row, leaves
from thespis.errors import ThespisError
from thespis.experience.demonstrations import unrolls
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.n_step import NStep
from thespis.experience.recording import gather
from thespis.experience.samplers import Fifo, Prioritised, Sampler, Uniform
from thespis.experience.sequences import SequenceWindow, Shape
from thespis.experience.steps import Layout, Steps
from thespis.memory import available_memory
from thespis.roles.demonstrations import Demonstrations
from thespis.roles.table import ReplayTable, Window
from thespis.runtime.context import Context
from thespis.types import Array, Tree

_SHARE = 0.8
"""Of the memory that is free, this much may go to a replay: the rest of the run needs some too."""


_TIMES_BYTES = 2
_SAMPLER_BYTES = {"uniform": 1, "fifo": 8, "prioritised": 16}
"""Per step; a leaf of the sum tree takes 8, and the nodes above it 4 to 8."""


class HasReplay(Protocol):
    @property
    def env(self) -> Spec: ...
    @property
    def replay(self) -> ReplayConfig: ...
    @property
    def reward(self) -> RewardConfig: ...
    @property
    def n_step(self) -> int: ...
    @property
    def discount(self) -> float: ...


def replay_table(ctx: Context, cfg: HasReplay, capacity: int, limiter: SamplesPerInsert) -> ReplayTable:
    """The configured table, with all the memory it will ever use."""
    layout = row_layout(describe(resolve(cfg.env)), cfg.replay)
    rows = affordable(cfg.replay, layout, capacity)
    window, shape, most = NStep(cfg.n_step, cfg.discount), _shaping(cfg.reward), cfg.replay.max_times_sampled
    return ReplayTable(ctx, Steps(layout, rows), window, sampler(cfg.replay, rows), limiter, shape, most)


class HasSequences(HasReplay, Protocol):
    @property
    def sequence_length(self) -> int: ...
    @property
    def burn_in(self) -> int: ...
    @property
    def unroll_length(self) -> int: ...
    @property
    def eta(self) -> float: ...
    @property
    def state(self) -> str: ...
    @property
    def network(self) -> NetworkConfig: ...


def sequence_table(ctx: Context, cfg: HasSequences, capacity: int, limiter: SamplesPerInsert) -> ReplayTable:
    """The configured table of sequences. It keeps rewards as they came: a recurrent network reads them so."""
    layout = row_layout(describe(resolve(cfg.env)), cfg.replay)
    rows = affordable(cfg.replay, layout, capacity, state_bytes(cfg))
    steps, window = Steps(layout, rows), _sequences(cfg, rows)
    drawn, most = sampler(cfg.replay, rows), cfg.replay.max_times_sampled
    return ReplayTable(ctx, steps, window, drawn, limiter, lambda rewards: rewards, most)


class HasDemonstrations(HasReplay, Protocol):
    @property
    def demos(self) -> Spec: ...
    @property
    def demo_episodes(self) -> int: ...
    @property
    def unroll_length(self) -> int: ...


class HasDemonstratedSequences(HasDemonstrations, HasSequences, Protocol): ...


def demonstration_table(ctx: Context, cfg: HasDemonstratedSequences) -> Demonstrations:
    """All demonstrations as sequences of the configured form. What actors add to theirs, values and states, is missing.

    Rewards stay as they came, as in `sequence_table`.
    """
    return _demonstrations(ctx, cfg, lambda rows: _sequences(cfg, rows), lambda rewards: rewards)


def transition_demonstrations(ctx: Context, cfg: HasDemonstrations) -> Demonstrations:
    """All demonstrations as n-step transitions, with rewards shaped as those of `replay_table`."""
    return _demonstrations(ctx, cfg, lambda rows: NStep(cfg.n_step, cfg.discount), _shaping(cfg.reward))


def _demonstrations(
    ctx: Context, cfg: HasDemonstrations, window: Callable[[int], Window], shape: Callable[[Array], Array]
) -> Demonstrations:
    """They are gathered from the run's seed alone, so that every life of the role has the same."""
    spaces, settings = describe(resolve(cfg.env)), replace(cfg.replay, actor_priorities=False, bytes=0, warm_up=1)
    episodes = [
        list(unrolls(episode, cfg.unroll_length, spaces.action_space))
        for episode in gather(cfg.demos, cfg.env, cfg.demo_episodes, ctx.identity.run_seed)
    ]
    layout = row_layout(spaces, settings)
    one = Steps(layout, 1)
    most = sum(one.most(unroll, one.opens(unroll)) for episode in episodes for unroll in episode)
    rows = affordable(settings, layout, most)
    steps, drawn = Steps(layout, rows), sampler(settings, rows)
    table = Demonstrations(ctx, steps, window(rows), drawn, Demonstrations.LIMITER, shape)
    table.fill(episodes)
    return table


def _sequences(cfg: HasSequences, rows: int) -> SequenceWindow:
    form = Shape(cfg.sequence_length, cfg.burn_in, cfg.unroll_length, cfg.n_step, cfg.discount, cfg.eta)
    return SequenceWindow(form, rows, _shaping(cfg.reward), stored=cfg.state == "stored")


def _shaping(reward: RewardConfig) -> Callable[[Array], Array]:
    return lambda rewards: shape_rewards(rewards, reward.kind, reward.scale)


def state_bytes(cfg: HasSequences) -> int:
    """What sequences take beside the steps, per step: a place, and a share of the state stored once per unroll."""
    return 8 + -(-(2 * 4 * cfg.network.lstm + 12) // cfg.unroll_length)


def affordable(cfg: ReplayConfig, layout: Layout, capacity: int, extra: int = 0) -> int:
    """How many steps are kept within the configured bytes; refuses what this machine has no memory for.

    `extra`: bytes per step that are not in the layout.
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
    if cfg.sampler == "fifo":
        return "fifo"
    return "prioritised" if cfg.priority_exponent else "uniform"


def sampler(cfg: ReplayConfig, capacity: int) -> Sampler:
    if sampling(cfg) == "prioritised":
        return Prioritised(capacity, cfg.priority_exponent, cfg.importance_exponent)
    return Fifo(capacity) if sampling(cfg) == "fifo" else Uniform(capacity)


def row_layout(spaces: Spaces, cfg: ReplayConfig) -> Layout:
    """What a row holds for these spaces."""
    rows = {leaf.key or "": np.empty(leaf.shape, leaf.dtype) for leaf in leaves(spaces.observation_space)}
    obs: Tree = rows if isinstance(spaces.observation_space, Dict) else rows[""]
    return Layout.of(obs, action_row(spaces.action_space), values=cfg.actor_priorities)
