"""Builders of single roles, and of the parts of roles, that several architectures share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.core.errors import ThespisError
from thespis.core.program import Handle, Placement, Program
from thespis.experience.limiters import SamplesPerInsert

if TYPE_CHECKING:
    from thespis.algorithms.r2d2 import Replayed
    from thespis.core.config import Experiment, InferenceConfig, ReplayConfig
    from thespis.core.context import Context
    from thespis.core.edges import Act, Draw, Insert, InsertStream, Next, Prioritise, Publish, Pull, Sample
    from thespis.core.types import Stream, Unroll
    from thespis.envs.autoreset import Environments
    from thespis.envs.spaces import Spaces
    from thespis.experience.seats import Told
    from thespis.networks.acting import Stepper
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.learner import Source
    from thespis.transport.inference import AnyDoor
    from thespis.transport.tls import Tls


# -- environments, networks and policies ----------------------------------------------------------


def environments(ctx: Context, cfg: Experiment, number: int, first: int = 0) -> Environments:
    """The configured environments, which tell the runtime where they are so that a hang can be named.

    `first`: the index of the first of them among those of the role.
    """
    from thespis.envs.make import make

    locate = ctx.locate
    made = make(cfg.env_config, number, on_env=lambda env, episode, step: locate(first + env, episode, step))
    made.track(cfg.track_info)
    return made


def build_stepper(ctx: Context, cfg: Experiment) -> Stepper:
    """What acts with the algorithm's network, on one thread: the actors share the machine."""
    import torch

    from thespis.runs.spaces import spaces_of

    torch.set_num_threads(1)
    network: PolicyNetwork = cfg.learned.build_network(spaces_of(cfg), seed=0)
    stepper: Stepper = cfg.learned.build_stepper(network, ctx.rng("policy"))
    return stepper


def local_policy(ctx: Context, cfg: Experiment, pull: Pull, ahead: bool = False) -> roles.LocalPolicy:
    """A policy in the actor's own process, on weights that it pulls. `ahead`: see `LocalPolicy`."""
    return roles.LocalPolicy(ctx, build_stepper(ctx, cfg), pull, ahead)


def learner_network(ctx: Context, cfg: Experiment, in_turns: bool = False) -> PolicyNetwork:
    """The network to train, on the cores that the actors leave: all of them, if actors and learner work in turns.

    A small network has one core, however many there are.
    """
    import torch

    from thespis.core.system.cores import learner_threads

    made = worker_network(ctx, cfg)
    parameters = sum(parameter.numel() for parameter in made.parameters())
    torch.set_num_threads(learner_threads(parameters, 0 if in_turns else cfg.actors))
    return made


def worker_network(ctx: Context, cfg: Experiment) -> PolicyNetwork:
    """The network of one of many workers, on one thread each; all of them start from the same weights.

    With `--init-from` those are the weights that were taken from another run.
    """
    import torch

    from thespis.runs import initial
    from thespis.runs.spaces import spaces_of

    torch.set_num_threads(1)
    made: PolicyNetwork = cfg.algorithm.build_network(spaces_of(cfg), ctx.identity.run_seed)
    for name, value in initial.read(cfg).items():
        made.state_dict()[name].copy_(torch.from_numpy(value))
    return made


# -- actors and learners --------------------------------------------------------------------------


def return_discount(cfg: Experiment) -> float | None:
    """The discount of the returns that an actor sends with its unrolls, if rewards are normalised by them."""
    return cfg.algorithm.discount if cfg.algorithm.reward.normalize else None


def unroll_actor(ctx: Context, cfg: Experiment, insert: Insert, policy: roles.LocalPolicy) -> roles.Actor:
    """An actor that sends every unroll once, and explores by its policy alone."""
    envs, length = environments(ctx, cfg, cfg.envs_per_actor), cfg.algorithm.items.unroll_length
    return roles.Actor(ctx, envs, policy, insert, length, return_discount(cfg))


def exploring_actor(
    ctx: Context, cfg: Experiment, insert: InsertStream, policy: roles.LocalPolicy, replays: int = 1
) -> roles.Actor:
    """An actor that inserts into a replay and explores as the algorithm says.

    `replays`: how many there are. All are filled alike, so the steps of all actors are so many times those in its own.
    """
    from thespis.experience.sources import Streamed

    inserts, first = Streamed(ctx, insert), ctx.identity.index * cfg.envs_per_actor
    mine, total = range(first, first + cfg.envs_per_actor), cfg.actors * cfg.envs_per_actor

    def explore() -> None:
        amount = cfg.algorithm.exploration.amount(inserts.inserted * replays, mine, total)
        if amount is not None:
            policy.explore(amount)

    envs, length = environments(ctx, cfg, cfg.envs_per_actor), cfg.algorithm.items.unroll_length
    return roles.Actor(ctx, envs, policy, inserts, length, before_unroll=explore)


def build_replay_actor(ctx: Context, cfg: Experiment, insert: InsertStream, pull: Pull) -> roles.Actor:
    """An actor on weights of its own that inserts into a replay, or into one of its shards."""
    return exploring_actor(ctx, cfg, insert, local_policy(ctx, cfg, pull), cfg.algorithm.items.replay.shards)


def central_learner(
    ctx: Context, cfg: Experiment, source: Source, network: PolicyNetwork, publish: Publish, publish_every: int = 1
) -> roles.Learner:
    """A learner that applies its own gradients and publishes the weights."""
    from thespis.exchange.local import LocalExchange

    update = cfg.algorithm.build_update(network, ctx.rng("minibatches"))
    exchange = LocalExchange(ctx, cfg.algorithm.optimizer, update.parameters, cfg.budget)
    return roles.Learner(ctx, source, update, exchange, publish, publish_every)


def build_queue_learner(
    ctx: Context, cfg: Experiment, sample: Sample, publish: Publish, unrolls: int, publish_every: int = 1
) -> roles.Learner:
    """A learner that takes unrolls from a queue, so many per update."""
    from thespis.experience.sources import Batches

    source = Batches(ctx, sample, unrolls)
    return central_learner(ctx, cfg, source, learner_network(ctx, cfg), publish, publish_every)


def build_rounds_learner(
    ctx: Context, cfg: Experiment, sample: Sample, publish: Publish, unrolls: int
) -> roles.Learner:
    """A learner that waits for so many unrolls of its present version, and works in turns with the actors."""
    from thespis.experience.sources import Rounds

    source = Rounds(ctx, sample, unrolls, lambda: learner.version)
    learner = central_learner(ctx, cfg, source, learner_network(ctx, cfg, in_turns=True), publish)
    return learner


def build_replay_learner(
    ctx: Context,
    cfg: Experiment,
    samples: Sequence[Draw],
    prioritise: Sequence[Prioritise],
    publish: Publish,
    publish_every: int,
) -> roles.Learner:
    """A learner that draws batches from a replay, or in equal parts from its shards."""
    from thespis.experience.sources import Draws

    items: Replayed = cfg.algorithm.items
    source = Draws(ctx, samples, items.batch, items.batches_per_draw, prioritise)
    return central_learner(ctx, cfg, source, learner_network(ctx, cfg), publish, publish_every)


# -- storage --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayShards:
    """A replay, or the shards of one, and the edges to them."""

    handles: Sequence[Handle[roles.ReplayTable]]
    items: Replayed
    envs_per_actor: int

    def insert(self, actor: int) -> InsertStream:
        """Actors are divided among the shards."""
        items = self.items.per_insert(self.envs_per_actor)
        return self.handles[actor % len(self.handles)].edge(roles.ReplayTable.insert, items=items)

    @property
    def samples(self) -> tuple[Draw, ...]:
        """Every shard gives an equal part of each batch."""
        return self.sampled_by(len(self.handles))

    def sampled_by(self, parts: int) -> tuple[Draw, ...]:
        """`parts`: into how many a batch is divided."""
        items = self.items.per_sample // parts
        return tuple(handle.edge(roles.ReplayTable.sample, items=items) for handle in self.handles)

    @property
    def priorities(self) -> tuple[Prioritise, ...]:
        """Where new priorities go, if items are sampled by any."""
        prioritised = bool(self.items.replay.priority_exponent)
        return tuple(handle.edge(roles.ReplayTable.prioritise) for handle in self.handles if prioritised)


def add_replay(p: Program, cfg: Experiment, place: Placement | None = None, actors: int | None = None) -> ReplayShards:
    """The replay, by default beside the weight store, or its shards, each in a process of its own.

    `actors`: how many insert into it, if not all.
    """
    items: Replayed = cfg.algorithm.items
    shards, actors = items.replay.shards, cfg.actors if actors is None else actors
    if shards > actors:
        raise ThespisError(f"{shards} replay shards for {actors} actors: some would stay empty; use fewer shards")
    if items.batch % shards:
        raise ThespisError(
            f"every shard gives an equal part of a batch, but {items.batch} is not divisible by {shards}; "
            "change --batch or --replay.shards"
        )
    one = items.replay.shard
    items.check_rows(one.capacity, -(-actors // shards) * cfg.envs_per_actor)
    band = SamplesPerInsert.of(one, items.per_insert(cfg.envs_per_actor), items.per_sample // shards)
    if place is None:
        place = p.at(process="storage" if shards == 1 else None, colocate="learner", restarts=3)
    handles = [place.add("replay", build_replay, cfg, one, capacity=one.capacity, limiter=band) for _ in range(shards)]
    return ReplayShards(handles, items, cfg.envs_per_actor)


def build_replay(
    ctx: Context, cfg: Experiment, settings: ReplayConfig, capacity: int, limiter: SamplesPerInsert
) -> roles.ReplayTable:
    """A replay of the algorithm's items, with all the memory it will ever use. `settings`: of this shard."""
    from thespis.experience.tables import build_table
    from thespis.runs.spaces import spaces_of

    steps, window, sampler, shape = build_table(cfg.algorithm, spaces_of(cfg), settings, capacity)
    return roles.ReplayTable(ctx, steps, window, sampler, limiter, shape, settings.max_times_sampled)


def validate_replay(cfg: Experiment, spaces: Spaces) -> None:
    """Refuse what cannot be stored: rewards that change after they are, and more steps than there is memory for."""
    from thespis.experience.tables import affordable_rows

    items: Replayed = cfg.algorithm.items
    if cfg.algorithm.reward.normalize:
        raise ThespisError(
            "rewards stay in the replay as they were stored, so --reward.normalize cannot be; scale them"
        )
    rows = affordable_rows(cfg.algorithm, spaces, items.replay, items.replay.capacity)
    items.check_rows(rows, cfg.actors * cfg.envs_per_actor)


def refuse_shards(cfg: Experiment, reason: str) -> None:
    """Refuse a replay in shards, where there cannot be any."""
    if cfg.algorithm.items.replay.shards != 1:
        raise ThespisError(f"{reason}: --replay.shards must stay 1")


# -- inference in another process -----------------------------------------------------------------


def validate_transport(cfg: InferenceConfig) -> None:
    """Refuse streams that could not be opened."""
    if cfg.transport != "grpc":
        return
    if importlib.util.find_spec("grpc") is None:
        raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
    tls = _tls(cfg)
    if tls is not None:
        tls.check()


def _tls(cfg: InferenceConfig) -> Tls | None:
    """What streams are encrypted with, if they are."""
    if cfg.tls_cert is None or cfg.tls_key is None or cfg.tls_ca is None:
        return None
    from thespis.transport.tls import Tls

    return Tls(cfg.tls_cert, cfg.tls_key, cfg.tls_ca, cfg.tls_name)


def build_remote_actor(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Act) -> roles.Actor:
    """Environments and a client of the inference server: no network, so no torch in this process."""
    size = cfg.envs_per_actor // inference.groups
    groups = [environments(ctx, cfg, size, first=number * size) for number in range(inference.groups)]
    policy = roles.RemotePolicy(ctx, build_client(ctx, cfg, inference, act, groups[0]))
    return roles.Actor(ctx, groups, policy, None, cfg.algorithm.items.unroll_length, writer=policy)


def build_inference(
    ctx: Context,
    cfg: Experiment,
    inference: InferenceConfig,
    following: Next,
    insert: Insert | None = None,
    insert_stream: InsertStream | None = None,
    lockstep: bool = False,
) -> roles.InferenceServer:
    """An inference server that inserts unrolls into a queue, or into a replay and explores as the algorithm says.

    `lockstep`: an actor that has completed an unroll waits for the next version.
    """
    from thespis.envs.spaces import action_row
    from thespis.experience.seats import Seats
    from thespis.runs.spaces import spaces_of

    stepper, algorithm, total = build_stepper(ctx, cfg), cfg.algorithm, cfg.actors * cfg.envs_per_actor
    no_action = action_row(spaces_of(cfg).action_space)

    def explore(told: Told) -> Any:
        first = told.stream.who[1] * cfg.envs_per_actor + told.start
        return algorithm.exploration.amount(0, range(first, first + len(told.flags)), total)

    def insert_unroll(stream: Stream, unroll: Unroll) -> Any:
        assert insert is not None
        return insert(unroll)

    return roles.InferenceServer(
        ctx,
        stepper,
        Seats(algorithm.items.unroll_length, stepper.initial_state, no_action, return_discount(cfg)),
        following,
        insert_stream or insert_unroll,
        inference.batch_rows(total),
        inference.inference_wait,
        explore=explore if insert_stream is not None else None,
        lockstep=lockstep,
        door=build_listener(ctx, cfg, inference),
    )


def build_client(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Any, envs: Environments) -> Any:
    """An actor's way to ask for actions: the edge itself, or a stream that it is invited to open."""
    if not inference.streams(cfg.on):
        return act
    from thespis.transport.inference_schema import Layout

    layout = Layout.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    invite = act.beside("invite")
    if inference.transport == "grpc":
        from thespis.transport.grpc_client import Line

        return Line(ctx, invite, layout, _tls(inference))
    from thespis.transport.shm_client import NearLine

    return NearLine(ctx, invite, layout)


def build_listener(ctx: Context, cfg: Experiment, inference: InferenceConfig) -> AnyDoor | None:
    """Where actors come in with streams of their own, if they do."""
    if not inference.streams(cfg.on):
        return None
    from thespis.runs.spaces import spaces_of
    from thespis.transport.inference_schema import Layout

    spaces = spaces_of(cfg)
    layout = Layout.of(spaces.observation_space, spaces.action_space, cfg.envs_per_actor)
    if inference.transport == "grpc":
        from thespis.transport.grpc_server import Door

        return Door(layout, ctx.address, _tls(inference))
    from thespis.transport.shm_server import NearDoor

    return NearDoor(layout)


# -- evaluators -----------------------------------------------------------------------------------


def add_evaluator(p: Program, cfg: Experiment, pull: Pull, colocate: str = "learner") -> None:
    """An evaluator on the learner's node, unless it is switched off. It works in bursts, so no CPU is kept for it."""
    if cfg.eval_episodes:
        p.at(colocate=colocate, cpus=0, restarts=3).add("evaluator", build_evaluator, cfg, pull=pull)


def build_evaluator(ctx: Context, cfg: Experiment, pull: Pull) -> roles.Evaluator:
    return evaluator(ctx, cfg, lambda: local_policy(ctx, cfg, pull))


def evaluator(ctx: Context, cfg: Experiment, make_policy: Callable[[], roles.LocalPolicy]) -> roles.Evaluator:
    return roles.Evaluator(
        ctx,
        make_envs=lambda number: environments(ctx, cfg, number),
        make_policy=make_policy,
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
        longest=cfg.eval_max_steps,
    )
