"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning without an actor, by workers that only label.

actor xN --unroll--> replay, demonstrations --transitions--> updater xU --labels--> buffer --examples--> trainer xT
trainer xT --gradients--> server xS --averages--> actor xN, updater xU
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.algorithms.base import chosen
from thespis.algorithms.qtopt import QTOpt
from thespis.architectures.builders import (
    add_replay,
    add_sharded_evaluator,
    build_demonstrations,
    build_stepper,
    exploring_actor,
    validate_replay,
    worker_network,
)
from thespis.architectures.sharding import Servers
from thespis.core.bounds import Bounds, Count, CountOrZero, Decay, RoleCount, ShardCount
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.user_code import Spec

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import After, Draw, InsertLabelled, InsertStream, Join, PullSlice, Push, SampleLabelled
    from thespis.envs.spaces import Spaces
    from thespis.roles.learner import Source


@dataclass(frozen=True)
class Config(Experiment):
    """QT-Opt. The defaults are for small control tasks; the paper's own are told with each setting."""

    PATHS: ClassVar[tuple[str, ...]] = ("demos",)

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that makes one."""
    actors: int = 1
    """How many actors step environments: the paper's robots (7 there)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side; one search serves all of them."""
    updaters: RoleCount = 1
    """Bellman updaters, which label transitions with targets (paper: about 1,000)."""
    trainers: RoleCount = 1
    """Trainers, which make gradients of labelled examples (paper: 10)."""
    shards: ShardCount = 1
    """Servers the parameters are divided among, each with its own optimiser state, averages and version."""
    decay: Decay = 0.995
    """Decay of the average of the parameters, with which actors act and labels are made (paper: 0.9999)."""
    lag: Count = 200
    """Updates between copies of that average to the second lagged network (paper: about 6,000)."""
    pull_every: Count = 8
    """Batches that an updater labels between two pulls of the lagged networks."""
    buffer: Count = 8
    """Labelled batches that may wait for trainers: labels get no older than these, updaters wait rather."""
    demos: Spec = ""
    """Offline data: a directory of `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: Count = 1_000
    """Most episodes to take of it; a scripted policy plays that many."""
    offline_updates: CountOrZero = 0
    """Updates from offline data alone before any actor steps: the paper's first phase."""
    online_share: Annotated[float, Bounds(above=0, most=1)] = 0.5
    """Chance of each example after that to come from the actors, if there is offline data (paper: up to 0.5)."""
    algorithm: QTOpt = chosen(QTOpt)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offline_updates and not self.demos:
            raise ThespisError("--offline-updates are made of offline data: give --demos")


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse what cannot be stored or read, before anything starts."""
    from thespis.experience.recording import gather

    validate_replay(cfg, spaces)
    if cfg.demos:
        gather(cfg.demos, cfg.env_config, cfg.demo_episodes, cfg.seed)


def build_actor(
    ctx: Context, cfg: Config, insert: InsertStream, after: After, pulls: Sequence[PullSlice]
) -> roles.Actor:
    """`after`: waits for a number of updates. `pulls`: of each server."""
    from thespis.exchange.push_pull import PullAfter, PullAll

    stepper = build_stepper(ctx, cfg)
    pull = PullAfter(PullAll(ctx, stepper.network, pulls), after, cfg.offline_updates)
    return exploring_actor(ctx, cfg, insert, roles.LocalPolicy(ctx, stepper, pull), cfg.algorithm.items.replay.shards)


def build_updater(
    ctx: Context,
    cfg: Config,
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
    ctx: Context, cfg: Config, sample: SampleLabelled, joins: Sequence[Join], pushes: Sequence[Push]
) -> roles.Learner:
    from thespis.exchange.push_pull import PushPull
    from thespis.experience.labels import Labels

    network = worker_network(ctx, cfg)
    exchange = PushPull(ctx, network, joins, pushes, clip=cfg.algorithm.optimizer.clip, by_steps=False)
    source = Labels(ctx, sample, lambda: exchange.version, cfg.shards, cfg.trainers)
    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, exchange, None)


def program(cfg: Config) -> Program:
    p = Program("qtopt")
    alone, server = p.at(restarts=3), roles.AveragingServer
    rule: dict[str, Any] = {"optimizer": cfg.algorithm.optimizer, "budget": cfg.budget}
    handles = [alone.add("server", server, **rule, decay=cfg.decay, lag=cfg.lag) for _ in range(cfg.shards)]
    servers, lagged = Servers(handles), tuple(each.edge(server.lagged) for each in handles)
    replay, storage = add_replay(p, cfg), p.at(process="storage", colocate="learner", restarts=3)
    shown = None
    if cfg.demos:
        demos = storage.add("demonstrations", build_demonstrations, cfg, cfg.demos, cfg.demo_episodes)
        shown = demos.edge(roles.Demonstrations.sample)
    buffer = storage.add("buffer", roles.TrainBuffer.queue, capacity=cfg.buffer)
    for _ in range(cfg.updaters):
        alone.add(
            "updater",
            build_updater,
            cfg,
            # With demonstrations the share of a replay is drawn, and may be all.
            samples=replay.sampled_by(1) if cfg.demos else replay.samples,
            sample_demos=shown,
            insert=buffer.edge(roles.TrainBuffer.insert),
            pulls=servers.pulls,
            lagged=lagged,
        )
    sample = buffer.edge(roles.TrainBuffer.sample)
    for _ in range(cfg.trainers):
        alone.add("trainer", build_trainer, cfg, sample=sample, joins=servers.joins, pushes=servers.pushes)
    actors, after = p.at(restarts=3, counts_as_actor=True), handles[0].edge(server.after)
    for index in range(cfg.actors):
        actors.add("actor", build_actor, cfg, insert=replay.insert(index), after=after, pulls=servers.pulls)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
