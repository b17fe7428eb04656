"""Builders of learning from labels: actors that wait for offline updates, Bellman updaters, and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.builders import build_stepper, exploring_actor, worker_network

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import After, Draw, InsertLabelled, InsertStream, Join, PullSlice, Push, SampleLabelled
    from thespis.roles.learner import Source


def build_waiting_actor(
    ctx: Context, cfg: Any, insert: InsertStream, after: After, pulls: Sequence[PullSlice]
) -> roles.Actor:
    """An actor that steps only once the updates from offline data are made. `after`: waits for a number of updates."""
    from thespis.exchange.push_pull import PullAfter, PullAll

    stepper = build_stepper(ctx, cfg)
    pull = PullAfter(PullAll(ctx, stepper.network, pulls), after, cfg.offline_updates)
    return exploring_actor(ctx, cfg, insert, roles.LocalPolicy(ctx, stepper, pull), cfg.algorithm.items.replay.shards)


def build_updater(
    ctx: Context,
    cfg: Any,
    samples: Sequence[Draw],
    sample_demos: Draw | None,
    insert: InsertLabelled,
    pulls: Sequence[PullSlice],
    lagged: Sequence[PullSlice],
) -> roles.BellmanUpdater:
    """`pulls`, `lagged`: of each server, the first and the second lagged network."""
    from thespis.exchange.push_pull import PullAll
    from thespis.experience.mixing import Mixed, Origin
    from thespis.experience.sources import Draws

    items, first, second = cfg.algorithm.items, worker_network(ctx, cfg), worker_network(ctx, cfg)
    both = (PullAll(ctx, first, pulls), PullAll(ctx, second, lagged))

    def chances() -> list[float]:
        offline = updater.version.update < cfg.offline_updates * cfg.shards
        lived = 0.0 if offline else cfg.online_share
        return [*(lived / len(samples) for _ in samples), 1.0 - lived]

    source: Source = Draws(ctx, samples, items.batch, items.batches_per_draw)
    if sample_demos is not None:
        origins = [Origin(0.0, sample, None) for sample in (*samples, sample_demos)]
        source = Mixed(ctx, origins, items.batch, items.batches_per_draw, chances=chances)
    labeller = cfg.algorithm.build_labeller(first, second, ctx.rng("search"))
    updater = roles.BellmanUpdater(ctx, source, labeller, both, insert, cfg.pull_every)
    return updater


def build_trainer(
    ctx: Context, cfg: Any, sample: SampleLabelled, joins: Sequence[Join], pushes: Sequence[Push]
) -> roles.Learner:
    from thespis.exchange.push_pull import PushPull
    from thespis.experience.labels import Labels

    network = worker_network(ctx, cfg)
    exchange = PushPull(ctx, network, joins, pushes, clip=cfg.algorithm.optimizer.clip, by_steps=False)
    source = Labels(ctx, sample, lambda: exchange.version, cfg.shards, cfg.trainers)
    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, exchange, None)
