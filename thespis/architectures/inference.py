"""Inference in another process: its settings, actors, the inference server, and the channel between them.

The channel is the edge itself, shared memory, or a gRPC stream.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from thespis import roles
from thespis.architectures.builders import build_environments, build_policy_runner, return_discount
from thespis.core.bounds import CountOrZero, NonNegative
from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import Act, Insert, InsertStream, Next
    from thespis.core.types import Stream, Unroll
    from thespis.envs.autoreset import Environments
    from thespis.experience.trajectory_assembler import StepMessage
    from thespis.transport.inference import InferenceListener
    from thespis.transport.tls import Tls


@dataclass(frozen=True)
class InferenceConfig:
    """The inference server and its clients."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = (
        "inference_batch",
        "transport",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "tls_name",
    )
    inference_batch: CountOrZero = 0
    """Inference batch size in environments; 0 uses half of all, so that one half steps while the other waits."""
    inference_wait: NonNegative = 0.002
    """Run a partial inference batch after this many seconds."""
    double_buffer: bool = False
    """Split each actor's environments in two: one half steps while the other half waits for actions."""
    transport: Literal["runtime", "grpc"] = "runtime"
    """Transport of inference requests: runtime (shared memory with --on local, Ray with --on ray), or grpc (direct
    connections between machines)."""
    tls_cert: Path | None = None
    """TLS certificate of the inference server, for grpc between machines: a PEM file that all nodes can read."""
    tls_key: Path | None = None
    """Private key of --tls-cert."""
    tls_ca: Path | None = None
    """CA certificates that actors trust."""
    tls_name: str = ""
    """Host name in --tls-cert; by default the address of the server's node."""

    def check(self, cfg: Experiment, actors: int) -> None:
        """Refuse settings that do not fit the `actors` that call one inference server."""
        environments = actors * cfg.envs_per_actor
        if self.inference_batch > environments:
            raise ThespisError(
                f"--inference-batch {self.inference_batch} can never fill with {actors} actors of "
                f"{cfg.envs_per_actor} environments; give at most {environments}"
            )
        if self.double_buffer and cfg.envs_per_actor % 2:
            raise ThespisError(f"--double-buffer needs an even --envs-per-actor, and it is {cfg.envs_per_actor}")
        self._check_transport(cfg.on)

    def _check_transport(self, on: str) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if self.transport == "grpc" and on == "simulation":
            raise ThespisError("--transport grpc needs real sockets; leave it off with --on simulation")
        if (any(files) or self.tls_name) and (self.transport != "grpc" or on != "ray"):
            raise ThespisError(
                "--tls-* need --transport grpc and --on ray; on one machine no other user can open the socket"
            )
        if (any(files) or self.tls_name) and not all(files):
            raise ThespisError("give --tls-cert, --tls-key and --tls-ca together")

    def validate(self) -> None:
        """Refuse a gRPC transport if gRPC is not installed or the TLS files are invalid."""
        if self.transport == "grpc" and importlib.util.find_spec("grpc") is None:
            raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
        if self.tls is not None:
            self.tls.check()

    @property
    def tls(self) -> Tls | None:
        """The TLS files of gRPC streams; None without TLS."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        from thespis.transport.tls import Tls

        return Tls(self.tls_cert, self.tls_key, self.tls_ca, self.tls_name)

    def streams(self, on: str) -> bool:
        """Whether each actor opens its own stream to the inference server."""
        return self.transport == "grpc" or on == "local"

    def absolute(self) -> InferenceConfig:
        """Make the TLS paths absolute, because other nodes have another working directory."""
        files: dict[str, Any] = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        return replace(self, **{name: path.resolve() for name, path in files.items() if path is not None})

    @property
    def groups(self) -> int:
        """Number of environment groups that an actor steps in turn."""
        return 2 if self.double_buffer else 1

    def batch_rows(self, environments: int) -> int:
        """Size of a full inference batch, given the total number of environments."""
        return self.inference_batch or max(1, environments // 2)


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


def build_client(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Any, envs: Environments) -> Any:
    """An actor's inference client: the edge itself, or a stream that the actor opens to the server."""
    if not inference.streams(cfg.on):
        return act
    from thespis.transport.inference_schema import InferenceSchema

    layout = InferenceSchema.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    open_session = act.sibling("open_session")
    if inference.transport == "grpc":
        from thespis.transport.grpc_client import GrpcInferenceClient

        return GrpcInferenceClient(ctx, open_session, layout, inference.tls)
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

        return GrpcInferenceServer(layout, ctx.address, inference.tls)
    from thespis.transport.shm_server import ShmInferenceServer

    return ShmInferenceServer(layout)
