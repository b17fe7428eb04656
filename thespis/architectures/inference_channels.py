"""The channel between actors and an inference server: the edge itself, shared memory, or a gRPC stream."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment, InferenceConfig
    from thespis.core.context import Context
    from thespis.envs.autoreset import Environments
    from thespis.transport.inference import InferenceListener
    from thespis.transport.tls import Tls


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
