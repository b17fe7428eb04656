"""Actors with a local policy, and evaluators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from thespis import roles
from thespis.architectures.parts.policies import build_environments, build_local_policy

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Insert, InsertStream, Pull, PullForActing


def return_discount(cfg: Experiment) -> float | None:
    """Discount of the returns that actors add to unrolls for reward normalisation; None without normalisation."""
    return cfg.algorithm.discount if cfg.algorithm.reward.normalize else None


def build_unroll_actor(
    ctx: Context, cfg: Experiment, insert: Insert, pull: PullForActing, ahead: bool = False
) -> roles.Actor:
    """An actor with a local policy that sends each unroll once and explores by sampling. `ahead`: see `LocalPolicy`."""
    envs, length = build_environments(ctx, cfg, cfg.envs_per_actor), cfg.algorithm.items.unroll_length
    policy = build_local_policy(ctx, cfg, pull, ahead)
    return roles.Actor(ctx, envs, policy, insert, length, return_discount(cfg))


def build_exploring_actor(
    ctx: Context, cfg: Experiment, insert: InsertStream, policy: roles.LocalPolicy, replays: int = 1
) -> roles.Actor:
    """An actor that inserts into a replay, with the algorithm's exploration.

    `replays`: number of replays. All fill at the same rate, so the steps of all actors are `replays` times the steps
    in this actor's replay.
    """
    from thespis.experience.sources import StreamInsert

    inserts, first = StreamInsert(ctx, insert), ctx.identity.index * cfg.envs_per_actor
    mine, total = range(first, first + cfg.envs_per_actor), cfg.actors * cfg.envs_per_actor

    def explore() -> None:
        amount = cfg.algorithm.exploration.amount(inserts.inserted * replays, mine, total)
        if amount is not None:
            policy.explore(amount)

    envs, length = build_environments(ctx, cfg, cfg.envs_per_actor), cfg.algorithm.items.unroll_length
    return roles.Actor(ctx, envs, policy, inserts, length, before_unroll=explore)


def build_replay_actor(
    ctx: Context, cfg: Experiment, insert: InsertStream, pull: PullForActing, replays: int = 1
) -> roles.Actor:
    """An actor with a local policy that inserts into a replay, or into one of `replays` replays."""
    return build_exploring_actor(ctx, cfg, insert, build_local_policy(ctx, cfg, pull), replays)


def build_evaluator(ctx: Context, cfg: Experiment, pull: Pull) -> roles.Evaluator:
    """An evaluator with a local policy."""
    return build_evaluator_with(ctx, cfg, lambda: build_local_policy(ctx, cfg, pull))


def build_evaluator_with(
    ctx: Context, cfg: Experiment, make_policy: Callable[[], roles.LocalPolicy]
) -> roles.Evaluator:
    """An evaluator on the policy that `make_policy` builds."""
    return roles.Evaluator(
        ctx,
        make_envs=lambda number: build_environments(ctx, cfg, number),
        make_policy=make_policy,
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
        longest=cfg.eval_max_steps,
    )
