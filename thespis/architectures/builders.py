"""The roles that architectures share: each `add_*` function adds one to a program, with its place and its edges.

A place says in which process and on which node a role runs; the roles of one process fail and restart together.
`parts/` has what an architecture need not know: how the role's object is built in its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thespis import roles
from thespis.architectures.parts.actors import build_evaluator, build_replay_actor, build_unroll_actor
from thespis.architectures.parts.demonstrations import build_demonstrations
from thespis.architectures.parts.group import build_aggregator, group_edges, node_edges
from thespis.architectures.parts.inference import build_inference, build_remote_actor, tls_of
from thespis.architectures.parts.learners import build_queue_learner, build_replay_learner
from thespis.architectures.parts.model_parallel import build_shard, shard_edges
from thespis.architectures.parts.replay import Replayed, ReplayShards, build_replay
from thespis.architectures.parts.weights import build_compressed_weights
from thespis.core.edges import GroupEdges, NodeEdges, PullForActing, ReplayEdges, ShardEdges
from thespis.core.errors import ThespisError
from thespis.core.learners_config import RESTARTS, InferenceConfig, LearnersConfig, OwnReplaysConfig, WeightsConfig
from thespis.core.program import Handle, Placement, Program
from thespis.experience.limiters import SamplesPerInsert

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.edges import Act, Insert, Next, Publish, Pull, Sample, UnrollStorage
    from thespis.envs.spaces import Spaces


# -- the queue and the weight store ---------------------------------------------------------------


@dataclass(frozen=True)
class UnrollQueue:
    """The edges to a queue of unrolls."""

    handle: Handle[roles.Queue]

    @property
    def insert(self) -> Insert:
        """The edge that inserts an unroll."""
        return self.handle.edge(roles.Queue.insert)

    def sample(self, unrolls: int, of_one_version: bool = False) -> Sample:
        """The edge that takes `unrolls` unrolls. `of_one_version`: each inserter has one unroll of each version."""
        return self.handle.edge(roles.Queue.sample, items=unrolls, of_one_version=of_one_version)


def add_queue(place: Placement, capacity: int) -> UnrollQueue:
    """Add a queue, which passes each unroll to one learner, oldest first. Actors wait while it is full."""
    return UnrollQueue(place.add("queue", roles.Queue, capacity=capacity))


FollowingT = TypeVar("FollowingT", bound=PullForActing, covariant=True)


@dataclass(frozen=True)
class Weights(Generic[FollowingT]):
    """The edges to a weight store."""

    publish: Publish
    """Stores the next version."""
    pull: PullForActing
    """Returns the newest version if the caller has an older one; compressed if the store compresses."""
    following: FollowingT
    """Waits for a version newer than the caller's; compressed if the store compresses."""
    pull_exact: Pull
    """Like `pull`, always in float32."""


def add_weights(place: Placement, hold_back: int = 0) -> Weights[Next]:
    """Add a weight store, which keeps the newest weights that a learner published and serves them to all others.

    `hold_back`: serve weights that are this many versions old.
    """
    role, store = roles.WeightStore, place.add("weights", roles.WeightStore, hold_back=hold_back)
    pull = store.edge(role.pull)
    return Weights(store.edge(role.publish), pull, store.edge(role.next), pull)


def add_actor_weights(
    place: Placement, cfg: Experiment, pulled: WeightsConfig, hold_back: int = 0
) -> Weights[PullForActing]:
    """Add a weight store that actors pull from; with `--weights` it compresses what they pull."""
    if not pulled.compresses:
        return add_weights(place, hold_back)
    note = pulled.describe()
    place.program.notes += [note] if note not in place.program.notes else []
    role, threaded = roles.CompressedWeightStore, replace(place, thread=True)
    store = threaded.add("weights", build_compressed_weights, cfg, pulled, hold_back)
    edges = store.edge(role.publish), store.edge(role.pull), store.edge(role.next), store.edge(role.pull_exact)
    return Weights(*edges)


# -- the replay -----------------------------------------------------------------------------------


def add_replay(
    p: Program, cfg: Experiment, place: Placement | None = None, actors: int | None = None, learners: int = 1
) -> ReplayShards:
    """Add the replay, by default in the process `storage`, or its shards, one process each.

    A replay stores what actors insert and samples batches for a learner. Each waits for the other, so that an item is
    sampled `--replay.samples-per-insert` times.

    `actors`: the number of actors that insert into it; all by default. `learners`: how many have a replay of their own,
    of an equal part of the sizes.
    """
    items: Replayed = cfg.algorithm.items
    shards, actors = items.replay.shards, cfg.actors if actors is None else actors
    if shards > actors:
        raise ThespisError(f"{shards} replay shards for {actors} actors: some would stay empty; use fewer shards")
    if items.batch % shards:
        raise ThespisError(
            f"every shard contributes an equal part of a batch, but {items.batch} is not divisible by {shards}; "
            "change --batch or --replay.shards"
        )
    one = replace(replace(items.replay, shards=learners).shard, shards=shards).shard
    items.check_rows(one.capacity, -(-actors // shards) * cfg.envs_per_actor)
    band = SamplesPerInsert.of(one, items.per_insert(cfg.envs_per_actor), items.per_sample // shards)
    if place is None:
        place = p.at(process="storage" if shards == 1 else None, colocate="learner", restarts=3)
    handles = [place.add("replay", build_replay, cfg, one, capacity=one.capacity, limiter=band) for _ in range(shards)]
    return ReplayShards(handles, items, cfg.envs_per_actor, learners)


def validate_replay(cfg: Experiment, spaces: Spaces) -> None:
    """Refuse a replay with normalised rewards, or with more steps than fit into memory."""
    from thespis.experience.replay_parts import affordable_rows

    items: Replayed = cfg.algorithm.items
    if cfg.algorithm.reward.normalize:
        raise ThespisError(
            "a replay stores shaped rewards, so --reward.normalize does not work; use --reward.kind scale"
        )
    rows = affordable_rows(cfg.algorithm, spaces, items.replay, items.replay.capacity)
    items.check_rows(rows, cfg.actors * cfg.envs_per_actor)


def refuse_shards(cfg: Experiment, reason: str) -> None:
    """Refuse a sharded replay; `reason` starts the error message."""
    if cfg.algorithm.items.replay.shards != 1:
        raise ThespisError(f"{reason}: --replay.shards must stay 1")


def add_demonstrations(place: Placement, cfg: Any) -> ReplayEdges:
    """Add a replay that holds all of `--demos` from the start, and samples them for a learner without end."""
    handle, prioritised = place.add("demonstrations", build_demonstrations, cfg), cfg.algorithm.items.replay
    prioritise = handle.edge(roles.Demonstrations.prioritise) if prioritised.priority_exponent else None
    return ReplayEdges(handle.edge(roles.Demonstrations.sample), prioritise)


def validate_demonstrations(cfg: Any) -> None:
    """Refuse demonstrations that cannot be read or whose spaces differ from the environment's."""
    from thespis.experience.recording import gather

    gather(cfg.demos, cfg.env_config, cfg.demo_episodes, cfg.seed)


# -- learners, their group and their shards -------------------------------------------------------


def add_group(p: Program, cfg: Any, preempt: float = 1.0) -> list[GroupEdges | None]:
    """Add the group of several learners, in its own process, so that it outlives each of them.

    It combines the gradients of their batches and returns the same result to all, so that they stay equal. With
    `--learners-per-node` an aggregator on each node adds up its learners' gradients for the group.

    Returns the edges of each learner to what it calls; they are None for a single learner. `preempt`: see
    `PreemptionConfig`.
    """
    learners: LearnersConfig = cfg.group
    if learners.learners == 1:
        return [None]
    if learners.compression.compresses:
        p.notes.append(learners.compression.describe())
    if learners.all_reduce != "group":
        p.notes.append(f"gradients: {learners.all_reduce} adds them up between the learners, outside the edges")
    handle: Handle[roles.LearnerGroup] = p.at(colocate="group", cpus=0, restarts=3).add(
        "group",
        roles.LearnerGroup,
        learners=learners.learners,
        timeout=learners.learner_timeout,
        averages=cfg.algorithm.averages,
        preempt_share=preempt,
        per_node=learners.learners_per_node or 1,
        compression=learners.compression,
    )
    if learners.learners_per_node is None:
        edges = group_edges(handle, roles.LearnerGroup, preempt != 1.0)
        if learners.all_reduce != "group":
            edges = edges._replace(combine=handle.edge(roles.LearnerGroup.agree))
        return [edges] * learners.learners
    above = node_edges(handle, preempt != 1.0)
    return [edges for node in learners.nodes for edges in [add_aggregator(p, cfg, node, above)] * len(node)]


def add_aggregator(p: Program, cfg: Any, node: range, group: NodeEdges) -> GroupEdges:
    """Add the aggregator of the learners `node`, in its own process on their node; returns the edges of each."""
    learners: LearnersConfig = cfg.group
    place = p.at(colocate=learners.node(node.start), cpus=0, restarts=RESTARTS)
    handle = place.add("aggregator", build_aggregator, cfg, learners, group=group)
    return group_edges(handle, roles.NodeAggregator, group.preemption is not None)


def add_shards(place: Placement, cfg: Any) -> tuple[ShardEdges, ...]:
    """Add the shards of a learner with `--parallel`; each holds a part of its network, in its own process.

    Returns none for a learner with a whole network. `place`: that of the learner, on whose node they are.
    """
    own = replace(place, process=None, cpus=1.0, replicated=False)
    processes = range(1, cfg.model.processes)
    return tuple(shard_edges(own.add("shard", build_shard, cfg, process=process)) for process in processes)


def validate_parallel(cfg: Any, spaces: Spaces) -> None:
    """Refuse an algorithm or a network that cannot be divided."""
    if not cfg.model.divides:
        return
    from thespis.networks.cuts import why_whole

    flag = f"--parallel {cfg.model.parallel}"
    if not cfg.algorithm.SHARDABLE:
        raise ThespisError(f"{flag}: --algorithm {cfg.algorithm.name} needs its network in one process; leave it off")
    reason = why_whole(cfg.algorithm.build_network(spaces, seed=0), cfg.model)
    if reason:
        raise ThespisError(f"{flag} cannot divide this network: {reason}")


def add_queue_learner(
    place: Placement,
    cfg: Any,
    sample: Sample,
    publish: Publish,
    unrolls: int,
    group: GroupEdges | None,
    every: int = 1,
    shards: tuple[ShardEdges, ...] = (),
) -> None:
    """Add one of `cfg.group.learners` learners. For each update it takes `unrolls` unrolls from its queue.

    It publishes every `every` updates. `group` and `shards`: see `add_group` and `add_shards`.
    """
    replace(place, replicated=True).add(
        "learner",
        build_queue_learner,
        cfg,
        sample=sample,
        publish=publish,
        unrolls=unrolls,
        publish_every=every,
        group=group,
        shards=shards,
    )


def add_replay_learner(
    place: Placement, cfg: Any, replay: ReplayShards, publish: Publish, group: GroupEdges | None, every: int
) -> None:
    """Add one of `cfg.group.learners` learners. It samples from the replay and sends it new priorities.

    It publishes every `every` updates. `group`: see `add_group`.
    """
    replace(place, replicated=True).add(
        "learner",
        build_replay_learner,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        publish=publish,
        publish_every=every,
        group=group,
    )


# -- actors, inference servers and evaluators -----------------------------------------------------


def add_unroll_actor(p: Program, cfg: Experiment, insert: Insert, pull: PullForActing, ahead: bool = False) -> None:
    """Add an actor that samples actions from its own copy of the policy and inserts each unroll into a queue.

    It pulls weights between unrolls; with `ahead` it does not wait for them, but starts the next unroll.
    """
    actors = p.at(restarts=3, counts_as_actor=True)
    actors.add("actor", build_unroll_actor, cfg, insert=insert, pull=pull, ahead=ahead)


def add_inference(place: Placement, cfg: Any, weights: Weights[Next], storage: UnrollStorage) -> Act:
    """Add an inference server, which chooses the actions of many actors in one batch; returns the edge of an actor.

    It follows the published weights, and assembles and stores the unrolls of its actors.
    """
    inference, following = cfg.inference.absolute(), weights.following
    handle = place.add("inference", build_inference, cfg, inference, following=following, storage=storage)
    return handle.edge(roles.InferenceServer.act)


def validate_inference(inference: InferenceConfig) -> None:
    """Refuse a gRPC transport if gRPC is not installed or the TLS files are invalid."""
    import importlib.util

    if inference.transport == "grpc" and importlib.util.find_spec("grpc") is None:
        raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
    tls = tls_of(inference)
    if tls is not None:
        tls.check()


def add_remote_actor(p: Program, cfg: Any, act: Act) -> None:
    """Add an actor that only steps environments: it sends observations to an inference server and receives actions."""
    p.at(restarts=3, counts_as_actor=True).add("actor", build_remote_actor, cfg, cfg.inference.absolute(), act=act)


def add_evaluator(p: Program, cfg: Experiment, pull: Pull, colocate: str = "learner") -> None:
    """Add an evaluator, unless evaluation is disabled. It plays episodes with the greedy policy from time to time.

    It is on the learner's node and reserves no CPU: it works in bursts.
    """
    if cfg.eval_episodes:
        p.at(colocate=colocate, cpus=0, restarts=3).add("evaluator", build_evaluator, cfg, pull=pull)


# -- the roles of several learners, each with its own replay, weight store and actors ----------------


def add_own_replays(p: Program, cfg: Any) -> list[ReplayShards]:
    """Add the replay of each learner, or its shards."""
    learners: OwnReplaysConfig = cfg.group
    process = "storage" if cfg.algorithm.items.replay.shards == 1 else None
    places = [learners.place(p, process, learner) for learner in learners.indices]
    actors = [learners.actors_of(learner, cfg.actors) for learner in learners.indices]
    return [add_replay(p, cfg, place, fed, len(places)) for place, fed in zip(places, actors, strict=True)]


def add_own_weights(p: Program, cfg: Any) -> list[Weights[PullForActing]]:
    """Add the weight store of each learner, in the process of its replay."""
    learners: OwnReplaysConfig = cfg.group
    places = [learners.place(p, "storage", learner) for learner in learners.indices]
    return [add_actor_weights(place, cfg, learners.pulled) for place in places]


def add_replay_learners(
    p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[Weights[PullForActing]]
) -> None:
    """Add the learners, and their group if there are several."""
    learners: OwnReplaysConfig = cfg.group
    groups = zip(replays, stores, add_group(p, cfg), strict=True)
    for learner, (replay, store, group) in enumerate(groups):
        place = learners.place(p, None, learner)
        add_replay_learner(place, cfg, replay, store.publish, group, learners.publish_every)


def add_replay_actors(
    p: Program, cfg: Any, replays: Sequence[ReplayShards], stores: Sequence[Weights[PullForActing]]
) -> None:
    """Add all actors. Each acts with its own copy of the policy and the algorithm's exploration.

    It inserts into the replay of one learner and pulls weights from that learner's store.
    """
    place, memories = p.at(restarts=3, counts_as_actor=True), sum(len(replay.handles) for replay in replays)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        insert, pull = replays[learner].insert(actor), stores[learner].pull
        place.add("actor", build_replay_actor, cfg, insert=insert, pull=pull, replays=memories)
