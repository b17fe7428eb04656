"""How inference in another process is built: actors, the inference server, and the channel between them.

The channel is the edge itself, shared memory, or a gRPC stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.parts.actors import return_discount
from thespis.architectures.parts.policies import build_environments, build_policy_runner

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Act, Next, UnrollStorage
    from thespis.core.learners_config import InferenceConfig
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


def build_client(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Any, envs: Environments) -> Any:
    """An actor's inference client: the edge itself, or a stream that the actor opens to the server."""
    if not inference.streams(cfg.on):
        return act
    from thespis.transport.inference_schema import InferenceSchema

    layout = InferenceSchema.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    open_session = act.sibling("open_session")
    if inference.transport == "grpc":
        from thespis.transport.grpc_client import GrpcInferenceClient

        return GrpcInferenceClient(ctx, open_session, layout, tls_of(inference))
    from thespis.transport.shm_client import ShmInferenceClient

    return ShmInferenceClient(ctx, open_session, layout)


def tls_of(inference: InferenceConfig) -> Tls | None:
    """The TLS files of gRPC streams; None without TLS."""
    if inference.tls_cert is None or inference.tls_key is None or inference.tls_ca is None:
        return None
    from thespis.transport.tls import Tls

    return Tls(inference.tls_cert, inference.tls_key, inference.tls_ca, inference.tls_name)


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

        return GrpcInferenceServer(layout, ctx.address, tls_of(inference))
    from thespis.transport.shm_server import ShmInferenceServer

    return ShmInferenceServer(layout)
