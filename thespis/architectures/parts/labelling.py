"""How QT-Opt's roles are built: actors that wait for the offline phase, Bellman updaters, and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.parts.actors import build_exploring_actor
from thespis.architectures.parts.policies import build_policy_runner, build_worker_network

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import After, Draw, InsertLabelled, InsertStream, PullSlice, SampleLabelled, ServerEdges
    from thespis.roles.learner import Source


def build_waiting_actor(
    ctx: Context, cfg: Any, insert: InsertStream, after: After, pulls: Sequence[PullSlice]
) -> roles.Actor:
    """An actor that starts after the offline updates. `after` waits until the servers have made a number of updates."""
    from thespis.exchange.push_pull import PullAfter, PullAll

    runner = build_policy_runner(ctx, cfg)
    pull = PullAfter(PullAll(ctx, runner.network, pulls), after, cfg.offline_updates)
    return build_exploring_actor(
        ctx, cfg, insert, roles.LocalPolicy(ctx, runner, pull), cfg.algorithm.items.replay.shards
    )


def build_updater(
    ctx: Context,
    cfg: Any,
    samples: Sequence[Draw],
    sample_demos: Draw | None,
    insert: InsertLabelled,
    pulls: Sequence[PullSlice],
    lagged: Sequence[PullSlice],
) -> roles.BellmanUpdater:
    """A Bellman updater. `pulls` and `lagged`: per server, the edges to the first and second lagged network."""
    from thespis.exchange.push_pull import PullAll
    from thespis.experience.mixing import MixedSource, Origin
    from thespis.experience.sources import ReplaySource

    items, first, second = cfg.algorithm.items, build_worker_network(ctx, cfg), build_worker_network(ctx, cfg)
    both = (PullAll(ctx, first, pulls), PullAll(ctx, second, lagged))

    def chances() -> list[float]:
        offline = updater.version.update < cfg.offline_updates * cfg.shards
        online = 0.0 if offline else cfg.online_share
        return [*(online / len(samples) for _ in samples), 1.0 - online]

    source: Source = ReplaySource(ctx, samples, items.batch, items.batches_per_draw)
    if sample_demos is not None:
        origins = [Origin(0.0, sample, None) for sample in (*samples, sample_demos)]
        source = MixedSource(ctx, origins, items.batch, items.batches_per_draw, chances=chances)
    labeller = cfg.algorithm.build_labeller(first, second, ctx.rng("search"))
    updater = roles.BellmanUpdater(ctx, source, labeller, both, insert, cfg.pull_every)
    return updater


def build_trainer(ctx: Context, cfg: Any, sample: SampleLabelled, servers: ServerEdges) -> roles.Learner:
    """A trainer: it computes gradients from labelled batches and pushes them to all servers."""
    from thespis.exchange.push_pull import PushPull
    from thespis.experience.labelled import LabelledSource

    network = build_worker_network(ctx, cfg)
    exchange = PushPull(ctx, network, servers, clip=cfg.algorithm.optimizer.clip, by_steps=False)
    source = LabelledSource(ctx, sample, lambda: exchange.version, cfg.shards, cfg.trainers)
    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, exchange, None)
