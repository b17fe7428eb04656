"""Builders of single roles and their parts, shared by several architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.core.edges import GroupEdges, ReplayEdges
from thespis.core.errors import ThespisError
from thespis.core.program import Handle, Placement, Program
from thespis.experience.limiters import SamplesPerInsert

if TYPE_CHECKING:
    from thespis.algorithms.r2d2 import Replayed
    from thespis.core.config import Experiment, ReplayConfig
    from thespis.core.context import Context
    from thespis.core.edges import Draw, Insert, InsertStream, Next, Prioritise, Publish, Pull, PullForActing
    from thespis.core.learners_config import LearnersConfig
    from thespis.envs.autoreset import Environments
    from thespis.envs.spaces import Spaces
    from thespis.exchange.protocol import Exchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner


# -- environments, networks and policies ----------------------------------------------------------


def build_environments(ctx: Context, cfg: Experiment, number: int, first: int = 0) -> Environments:
    """Build `number` environments. They report env, episode and step to the runtime, so that it can name a hang.

    `first`: the index of the first of them within the role.
    """
    from thespis.envs.make import make_envs

    locate = ctx.locate
    made = make_envs(cfg.env_config, number, on_env=lambda env, episode, step: locate(first + env, episode, step))
    made.track(cfg.track_info)
    return made


def build_policy_runner(ctx: Context, cfg: Experiment) -> PolicyRunner:
    """Build the algorithm's network and policy runner, on one torch thread because actors share the machine."""
    import torch

    from thespis.runs.spaces import spaces_of

    torch.set_num_threads(1)
    network: PolicyNetwork = cfg.learned.build_network(spaces_of(cfg), seed=0)
    runner: PolicyRunner = cfg.learned.build_policy_runner(network, ctx.rng("policy"))
    return runner


def build_local_policy(ctx: Context, cfg: Experiment, pull: PullForActing, ahead: bool = False) -> roles.LocalPolicy:
    """A policy in the actor's process that pulls weights. `ahead`: see `LocalPolicy`."""
    return roles.LocalPolicy(ctx, build_policy_runner(ctx, cfg), pull, ahead)


def build_worker_network(ctx: Context, cfg: Experiment) -> PolicyNetwork:
    """The network of one worker, on one torch thread. All workers start from the same weights.

    With `--init-from` the initial weights come from another run.
    """
    import torch

    from thespis.runs.initial_weights import read_initial_weights
    from thespis.runs.spaces import spaces_of

    torch.set_num_threads(1)
    made: PolicyNetwork = cfg.algorithm.build_network(spaces_of(cfg), ctx.identity.run_seed)
    for name, value in read_initial_weights(cfg).items():
        made.state_dict()[name].copy_(torch.from_numpy(value))
    return made


# -- actors and learners --------------------------------------------------------------------------


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


def build_exchange(ctx: Context, cfg: Any, group: GroupEdges | None, optimizer: ScheduledOptimizer) -> Exchange:
    """The exchange of a central learner: alone, or with its group."""
    from thespis.exchange.all_reduce import AllReduce
    from thespis.exchange.local import LocalExchange

    if group is None:
        return LocalExchange(optimizer)
    learners: LearnersConfig = cfg.group
    if learners.all_reduce == "group":
        return AllReduce(ctx, optimizer, group, learners.compression_of_learners)
    from thespis.exchange.collective import CollectiveAllReduce

    return CollectiveAllReduce(ctx, optimizer, group, cfg.algorithm.averages, learners.learner_timeout)


# -- the weight store and the replay --------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """The edges to a weight store."""

    store: Handle[roles.WeightStore]

    @property
    def publish(self) -> Publish:
        """The edge that stores the next version."""
        return self.store.edge(roles.WeightStore.publish)

    @property
    def pull(self) -> Pull:
        """The edge that returns the newest version."""
        return self.store.edge(roles.WeightStore.pull)

    @property
    def pull_exact(self) -> Pull:
        """The edge that returns the newest version in float32."""
        return self.pull

    @property
    def following(self) -> Next:
        """The edge that waits for the next version."""
        return self.store.edge(roles.WeightStore.next)


def add_weights(place: Placement, hold_back: int = 0) -> Weights:
    """Add the weight store. `hold_back`: delay weights by this many versions."""
    return Weights(place.add("weights", roles.WeightStore, hold_back=hold_back))


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


def add_replay(
    p: Program, cfg: Experiment, place: Placement | None = None, actors: int | None = None, learners: int = 1
) -> ReplayShards:
    """Add the replay, by default in the process `storage`, or its shards, one process each.

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


def build_replay(
    ctx: Context, cfg: Experiment, settings: ReplayConfig, capacity: int, limiter: SamplesPerInsert
) -> roles.Replay:
    """A replay of the algorithm's items; it allocates all its memory here. `settings`: those of one shard."""
    from thespis.experience.replay_parts import build_replay_parts
    from thespis.runs.spaces import spaces_of

    steps, window, sampler, shape = build_replay_parts(cfg.algorithm, spaces_of(cfg), settings, capacity)
    return roles.Replay(ctx, steps, window, sampler, limiter, shape, settings.max_times_sampled)


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


# -- evaluators -----------------------------------------------------------------------------------


def add_evaluator(p: Program, cfg: Experiment, pull: Pull, colocate: str = "learner") -> None:
    """Add an evaluator on the learner's node, unless evaluation is disabled. It reserves no CPU: it works in bursts."""
    if cfg.eval_episodes:
        p.at(colocate=colocate, cpus=0, restarts=3).add("evaluator", build_evaluator, cfg, pull=pull)


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
