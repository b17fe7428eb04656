"""Builders of sharded parameter servers, and of the learners that push gradients to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from thespis import roles
from thespis.architectures.builders import add_replay
from thespis.architectures.parts.actors import build_evaluator_with, build_exploring_actor, return_discount
from thespis.architectures.parts.policies import build_environments, build_policy_runner, build_worker_network
from thespis.architectures.parts.replay import ReplayShards
from thespis.core.bounds import Bounds, Positive, ShardCount
from thespis.core.edges import PullSlice, ServerEdges
from thespis.core.errors import ThespisError
from thespis.core.learners_config import RESTARTS, UNCOMPRESSED, CompressionConfig
from thespis.core.program import Handle, Placement, Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.algorithms.updates.update import Update
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Draw, InsertStream, Prioritise
    from thespis.exchange.push_pull import PushPull
    from thespis.networks.policies import PolicyNetwork


_WORKER_TIMEOUT = 3.0


@dataclass(frozen=True)
class ServersConfig:
    """Sharding of the parameters over servers, aggregation of gradients on nodes, and their compression."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("workers_per_node",)

    shards: ShardCount = 1
    """Number of parameter servers; each holds a slice of the parameters and its optimiser state (Gorila's paper:
    31)."""
    workers_per_node: Annotated[int, Bounds(least=2)] | None = None
    """Put this many workers on each node of a cluster, and add their gradients up there, so that one gradient per node
    travels to each server. Workers of a node then run in lock-step."""
    worker_timeout: Positive = _WORKER_TIMEOUT
    """With --workers-per-node: continue without a worker that sends no heartbeat for N seconds. It must be longer than
    the computation of one gradient."""
    compression: CompressionConfig = inline(CompressionConfig)

    def check(self, cfg: Experiment, workers: int, backups: int = 0) -> None:
        """Refuse nodes that cannot be filled, or that change nothing. `workers`: how many push gradients."""
        size = self.workers_per_node
        if size is None:
            if self.worker_timeout != _WORKER_TIMEOUT:
                raise ThespisError("--worker-timeout is for --workers-per-node; give both, or leave it off")
            return
        if cfg.actors_per_node is not None:
            raise ThespisError("--workers-per-node says where workers run; leave off --actors-per-node")
        if workers % size:
            raise ThespisError(
                f"{workers} workers cannot be divided into nodes of {size}; use a multiple of {size} workers"
            )
        if workers == size:
            raise ThespisError(
                f"--workers-per-node {size} puts all {workers} workers on one node, so there would be no second node "
                "to share parameters with; use more workers, or leave it off"
            )
        if backups >= workers // size:
            raise ThespisError(
                f"--backups {backups} counts nodes with --workers-per-node {size}, and {workers} workers are only "
                f"{workers // size} nodes; give at most --backups {workers // size - 1}"
            )

    def callers(self, workers: int) -> int:
        """How many push to the servers: all workers, or one aggregator per node."""
        return workers // (self.workers_per_node or 1)

    @property
    def compression_of_workers(self) -> CompressionConfig:
        """Compression of what a worker sends: none if the aggregator of its node compresses."""
        return self.compression if self.workers_per_node is None else UNCOMPRESSED


def refuse_statistics(cfg: Experiment) -> None:
    """Refuse a network with running statistics: servers hold only parameters."""
    if cfg.algorithm.network.normalize_observations:
        raise ThespisError(
            "--network.normalize-observations needs a single learner, and this architecture has several; leave it "
            "off, or wrap the environment"
        )


class Servers(NamedTuple):
    """All shards of a parameter server, as a worker calls them: themselves, or the aggregator of its node.

    `edges`: of a worker. `pulls`: of a role that only acts. `colocate`: the worker's node group, if it has one.
    """

    edges: ServerEdges
    pulls: tuple[PullSlice, ...]
    colocate: str | None = None

    @classmethod
    def of(cls, handles: Sequence[Handle[roles.ParameterServer]]) -> Self:
        """The servers themselves."""
        server = roles.ParameterServer
        joins = tuple(each.edge(server.join) for each in handles)
        pushes = tuple(each.edge(server.push) for each in handles)
        return cls(ServerEdges(joins, pushes), tuple(each.edge(server.pull) for each in handles))


def add_servers(p: Program, cfg: Any, **rule: Any) -> Servers:
    """Add the parameter servers. `rule`: arguments that say when gradients are applied."""
    settings = {"optimizer": cfg.algorithm.optimizer, "budget": cfg.budget, **rule}
    place = p.at(restarts=3)
    if cfg.servers.compression.compresses:
        p.notes.append(cfg.servers.compression.describe())
    return Servers.of([place.add("server", roles.ParameterServer, **settings) for _ in range(cfg.servers.shards)])


def add_nodes(p: Program, cfg: Any, servers: Servers, workers: int) -> list[Servers]:
    """Add the aggregator of each node, if there are nodes. Returns the servers as each of the `workers` calls them."""
    settings: ServersConfig = cfg.servers
    size = settings.workers_per_node
    if size is None:
        return [servers] * workers
    found: list[Servers] = []
    for node in range(workers // size):
        place, own = p.at(colocate=f"workers {node}", cpus=0, restarts=RESTARTS), roles.PushAggregator
        handle = place.add(
            "aggregator",
            own,
            servers=servers.edges,
            workers=size,
            timeout=settings.worker_timeout,
            compression=settings.compression,
        )
        edges = ServerEdges((handle.edge(own.join),), (handle.edge(own.push),), handle.edge(own.heartbeat))
        found += [Servers(edges, (handle.edge(own.pull),), place.colocate)] * size
    return found


def build_exchange(ctx: Context, cfg: Any, network: PolicyNetwork, servers: ServerEdges, *, by_steps: bool) -> PushPull:
    """The learner's side of the gradient edges to all servers."""
    from thespis.exchange.push_pull import PushPull

    clip, compression = cfg.algorithm.optimizer.clip, cfg.servers.compression_of_workers
    return PushPull(ctx, network, servers, clip=clip, compression=compression, by_steps=by_steps)


def build_acting_learner(
    ctx: Context, cfg: Experiment, network: PolicyNetwork, exchange: Any, cut: bool = False
) -> roles.Learner:
    """A learner that steps its own environments with the network it trains.

    With an off-policy algorithm it acts while its gradients are under way. `cut`: unrolls end with the episode.
    """
    from thespis.experience.inline_collector import InlineCollector

    algorithm = cfg.algorithm
    source = InlineCollector(
        ctx,
        build_environments(ctx, cfg, cfg.envs_per_actor),
        algorithm.build_policy_runner(network, ctx.rng("policy")),
        algorithm.items.unroll_length,
        lambda: exchange.version,
        cut=cut,
        ahead=algorithm.off_policy,
        return_discount=return_discount(cfg),
    )
    update = algorithm.build_update(network, ctx.rng("minibatches"))
    return roles.Learner(ctx, source, update, exchange, None)


def build_worker(ctx: Context, cfg: Experiment, servers: ServerEdges, cut: bool = False) -> roles.Learner:
    """A worker: it acts, computes gradients and pushes them to all servers. `cut`: unrolls end with the episode."""
    network = build_worker_network(ctx, cfg)
    exchange = build_exchange(ctx, cfg, network, servers, by_steps=cfg.algorithm.averages)
    return build_acting_learner(ctx, cfg, network, exchange, cut)


def add_workers(p: Program, cfg: Experiment, servers: Servers, cut: bool = False) -> None:
    """Add `cfg.actors` workers, and the aggregators of their nodes. `cut`: unrolls end with the episode."""
    for own in add_nodes(p, cfg, servers, cfg.actors):
        place = p.at(colocate=own.colocate, restarts=3, counts_as_actor=True)
        place.add("worker", build_worker, cfg, servers=own.edges, cut=cut)


# -- learners with a replay -----------------------------------------------------------------------


class Outliers(NamedTuple):
    """An outlier filter: it discards gradients if the loss is `deviations` above its mean over `memory` batches."""

    deviations: float
    memory: int


def build_replay_worker(
    ctx: Context,
    cfg: Any,
    samples: Sequence[Draw],
    prioritise: Sequence[Prioritise],
    servers: ServerEdges,
    sharers: int,
    outliers: Outliers | None,
) -> roles.Learner:
    """A learner that samples a replay and pushes to all servers. `sharers`: number of learners on this replay."""
    from thespis.algorithms.updates.outliers import OutlierFilter
    from thespis.experience.sources import ReplaySource

    network, items = build_worker_network(ctx, cfg), cfg.algorithm.items
    exchange = build_exchange(ctx, cfg, network, servers, by_steps=False)
    # The response to a push contains the servers' parameters, so the target network is a copy of those.
    update: Update = cfg.algorithm.build_update(
        network, ctx.rng("minibatches"), lambda: exchange.version.update // cfg.servers.shards
    )
    if outliers is not None:
        update = OutlierFilter(update, outliers.deviations, outliers.memory)
    source = ReplaySource(ctx, samples, items.batch, items.batches_per_draw, prioritise, sharers)
    return roles.Learner(ctx, source, update, exchange, None)


def build_sharded_actor(
    ctx: Context, cfg: Experiment, insert: InsertStream, pulls: Sequence[PullSlice], replays: int
) -> roles.Actor:
    """An actor on the servers' parameters. `replays`: number of replays, which all fill at the same rate."""
    return build_exploring_actor(ctx, cfg, insert, build_sharded_policy(ctx, cfg, pulls), replays)


def add_replay_worker(
    place: Placement, cfg: Any, replay: ReplayShards, servers: Servers, sharers: int, outliers: Outliers | None
) -> None:
    """Add a learner that samples `replay` and pushes to `servers`."""
    place = dataclasses.replace(place, colocate=servers.colocate or place.colocate)
    place.add(
        "learner",
        build_replay_worker,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        servers=servers.edges,
        sharers=sharers,
        outliers=outliers,
    )


def add_sharded_actor(place: Placement, cfg: Any, replay: ReplayShards, servers: Servers, replays: int) -> None:
    """Add an actor that inserts into `replay` and pulls from `servers`."""
    place = dataclasses.replace(place, counts_as_actor=True)
    place.add("actor", build_sharded_actor, cfg, insert=replay.insert(0), pulls=servers.pulls, replays=replays)


def add_bundle(p: Program, cfg: Any, bundle: int, servers: Servers, outliers: Outliers | None = None) -> None:
    """Add an actor, a replay and a learner in one process."""
    place = p.at(process=f"bundle-{bundle}", colocate=servers.colocate or f"bundle {bundle}", restarts=3)
    replay = add_replay(p, cfg, place, actors=1)
    add_replay_worker(place, cfg, replay, servers, 1, outliers)
    add_sharded_actor(place, cfg, replay, servers, cfg.actors)


# -- policies on the servers' parameters ----------------------------------------------------------


def build_sharded_policy(ctx: Context, cfg: Experiment, pulls: Sequence[PullSlice]) -> roles.LocalPolicy:
    """A policy that pulls parameters from all shards of a parameter server."""
    from thespis.exchange.push_pull import PullAll

    runner = build_policy_runner(ctx, cfg)
    return roles.LocalPolicy(ctx, runner, PullAll(ctx, runner.network, pulls))


def add_sharded_evaluator(p: Program, cfg: Experiment, pulls: Sequence[PullSlice]) -> None:
    """Add an evaluator that pulls from all shards of a parameter server, unless evaluation is disabled."""
    if cfg.eval_episodes:
        p.at(cpus=0, restarts=3).add("evaluator", build_sharded_evaluator, cfg, pulls=pulls)


def build_sharded_evaluator(ctx: Context, cfg: Experiment, pulls: Sequence[PullSlice]) -> roles.Evaluator:
    """An evaluator on the servers' parameters."""
    return build_evaluator_with(ctx, cfg, lambda: build_sharded_policy(ctx, cfg, pulls))
