"""Builders of inference in another process: actors, the inference server, and the channel between them.

The channel is the edge itself, shared memory, or a gRPC stream.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

from thespis import roles
from thespis.architectures.builders import build_environments, build_policy_runner, return_discount
from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment, InferenceConfig
    from thespis.core.context import Context
    from thespis.core.edges import Act, Insert, InsertStream, Next
    from thespis.core.types import Stream, Unroll
    from thespis.envs.autoreset import Environments
    from thespis.experience.trajectory_assembler import StepMessage
    from thespis.transport.inference import InferenceListener
    from thespis.transport.tls import Tls


# -- actors and the inference server ---------------------------------------------------------------


def build_remote_actor(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Act) -> roles.Actor:
    """An actor with a client of the inference server. It has no network, so its process does not import torch."""
    size = cfg.envs_per_actor // inference.groups
    groups = [build_environments(ctx, cfg, size, first=number * size) for number in range(inference.groups)]
    policy = roles.RemotePolicy(ctx, build_client(ctx, cfg, inference, act, groups[0]))
    return roles.Actor(ctx, groups, policy, None, cfg.algorithm.items.unroll_length, writer=policy)


class UnrollStorage(NamedTuple):
    """Where an inference server inserts unrolls: into a queue (`insert`) or into a replay (`insert_stream`).

    `lockstep`: after each unroll, an actor waits for the next weight version.
    """

    insert: Insert | None = None
    insert_stream: InsertStream | None = None
    lockstep: bool = False


def build_inference(
    ctx: Context, cfg: Any, inference: InferenceConfig, following: Next, storage: UnrollStorage
) -> roles.InferenceServer:
    """The inference server of a learner's actors. If it inserts into a replay, it uses the algorithm's exploration."""
    from thespis.envs.spaces import action_row
    from thespis.experience.trajectory_assembler import TrajectoryAssembler
    from thespis.runs.spaces import spaces_of

    runner, algorithm, total = build_policy_runner(ctx, cfg), cfg.algorithm, cfg.actors * cfg.envs_per_actor
    rows = cfg.group.actors_of(ctx.identity.index, cfg.actors) * cfg.envs_per_actor
    insert, insert_stream, lockstep = storage
    no_action = action_row(spaces_of(cfg).action_space)

    def explore(message: StepMessage) -> Any:
        first = message.stream.who[1] * cfg.envs_per_actor + message.start
        return algorithm.exploration.amount(0, range(first, first + len(message.flags)), total)

    def insert_unroll(stream: Stream, unroll: Unroll) -> Any:
        assert insert is not None
        return insert(unroll)

    return roles.InferenceServer(
        ctx,
        runner,
        TrajectoryAssembler(algorithm.items.unroll_length, runner.initial_state, no_action, return_discount(cfg)),
        following,
        insert_stream or insert_unroll,
        roles.Batching(inference.batch_rows(rows), inference.inference_wait, lockstep),
        explore=explore if insert_stream is not None else None,
        listener=build_listener(ctx, cfg, inference),
    )


# -- the channel ----------------------------------------------------------------------------------


def validate_transport(cfg: InferenceConfig) -> None:
    """Refuse a gRPC transport if gRPC is not installed or the TLS files are invalid."""
    if cfg.transport != "grpc":
        return
    if importlib.util.find_spec("grpc") is None:
        raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
    tls = _tls(cfg)
    if tls is not None:
        tls.check()


def _tls(cfg: InferenceConfig) -> Tls | None:
    """The TLS files of gRPC streams; None without TLS."""
    if cfg.tls_cert is None or cfg.tls_key is None or cfg.tls_ca is None:
        return None
    from thespis.transport.tls import Tls

    return Tls(cfg.tls_cert, cfg.tls_key, cfg.tls_ca, cfg.tls_name)


def build_client(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Any, envs: Environments) -> Any:
    """An actor's inference client: the edge itself, or a stream that the actor opens to the server."""
    if not inference.streams(cfg.on):
        return act
    from thespis.transport.inference_schema import InferenceSchema

    layout = InferenceSchema.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    open_session = act.sibling("open_session")
    if inference.transport == "grpc":
        from thespis.transport.grpc_client import GrpcInferenceClient

        return GrpcInferenceClient(ctx, open_session, layout, _tls(inference))
    from thespis.transport.shm_client import ShmInferenceClient

    return ShmInferenceClient(ctx, open_session, layout)


def build_listener(ctx: Context, cfg: Experiment, inference: InferenceConfig) -> InferenceListener | None:
    """The inference server's listener for the actors' streams; None if actors use the edge."""
    if not inference.streams(cfg.on):
        return None
    from thespis.runs.spaces import spaces_of
    from thespis.transport.inference_schema import InferenceSchema

    spaces = spaces_of(cfg)
    layout = InferenceSchema.of(spaces.observation_space, spaces.action_space, cfg.envs_per_actor)
    if inference.transport == "grpc":
        from thespis.transport.grpc_server import GrpcInferenceServer

        return GrpcInferenceServer(layout, ctx.address, _tls(inference))
    from thespis.transport.shm_server import ShmInferenceServer

    return ShmInferenceServer(layout)
