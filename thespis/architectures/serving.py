"""Inference in another process: its settings, and the two ends of the edge that carries observations and actions."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from thespis.core.bounds import CountOrZero, NonNegative
from thespis.core.errors import ThespisError

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.envs.autoreset import Environments
    from thespis.transport.inference import AnyDoor
    from thespis.transport.tls import Tls


@dataclass(frozen=True)
class InferenceConfig:
    """How actors are given actions."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = (
        "inference_batch",
        "transport",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "tls_name",
    )
    inference_batch: CountOrZero = 0
    """Environments that are answered at once; 0 for half of all, so that one half steps while the other is answered."""
    inference_wait: NonNegative = 0.002
    """Seconds after which those that wait are answered, however few they are."""
    double_buffer: bool = False
    """Actors step one half of their environments while the other half waits for actions."""
    transport: Literal["runtime", "grpc"] = "runtime"
    """runtime: what it has, on local a stream per actor through shared memory; grpc: one directly between machines."""
    tls_cert: Path | None = None
    """grpc between machines: the certificate of the inference server, as a PEM file that all nodes can read."""
    tls_key: Path | None = None
    """grpc between machines: the private key of --tls-cert."""
    tls_ca: Path | None = None
    """grpc between machines: the certificates that actors trust."""
    tls_name: str = ""
    """grpc between machines: the name that --tls-cert is for; the address of the server's node if not given."""

    def check(self, cfg: Experiment) -> None:
        """Refuse what cannot be served to the actors of an experiment."""
        environments = cfg.actors * cfg.envs_per_actor
        if self.inference_batch > environments:
            raise ThespisError(
                f"--inference-batch {self.inference_batch} is never full with {cfg.actors} actors of "
                f"{cfg.envs_per_actor} environments; give at most {environments}"
            )
        if self.double_buffer and cfg.envs_per_actor % 2:
            raise ThespisError(f"--double-buffer halves --envs-per-actor, which is {cfg.envs_per_actor}; make it even")
        self._check_transport(cfg.on)

    def _check_transport(self, on: str) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if self.transport == "grpc" and on == "simulation":
            raise ThespisError("--transport grpc opens real sockets, the simulation has none; leave it out there")
        if (any(files) or self.tls_name) and (self.transport != "grpc" or on != "ray"):
            raise ThespisError(
                "--tls-* are for --transport grpc --on ray; on one machine nobody else can open the socket"
            )
        if (any(files) or self.tls_name) and not all(files):
            raise ThespisError("give --tls-cert, --tls-key and --tls-ca together")

    def streams(self, on: str) -> bool:
        """Whether each actor has a stream of its own to the server."""
        return self.transport == "grpc" or on == "local"

    @property
    def tls(self) -> Tls | None:
        """What streams are encrypted with, if they are."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        from thespis.transport.tls import Tls

        return Tls(self.tls_cert, self.tls_key, self.tls_ca, self.tls_name)

    def absolute(self) -> InferenceConfig:
        """Files as nodes find them that have another working directory."""
        files: dict[str, Any] = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        return replace(self, **{name: path.resolve() for name, path in files.items() if path is not None})

    @property
    def groups(self) -> int:
        """Groups of environments that an actor steps in turns."""
        return 2 if self.double_buffer else 1

    def batch_rows(self, environments: int) -> int:
        """Rows that make a batch full, of so many environments in all."""
        return self.inference_batch or max(1, environments // 2)


def validate_transport(cfg: InferenceConfig) -> None:
    """Say no to streams that could not be opened."""
    if cfg.transport != "grpc":
        return
    if importlib.util.find_spec("grpc") is None:
        raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
    if cfg.tls is not None:
        cfg.tls.check()


def build_client(ctx: Context, cfg: Experiment, inference: InferenceConfig, act: Any, envs: Environments) -> Any:
    """An actor's way to ask for actions: the edge itself, or a stream that it is invited to open."""
    if not inference.streams(cfg.on):
        return act
    from thespis.transport.inference_schema import Layout

    layout = Layout.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    invite = act.beside("invite")
    if inference.transport == "grpc":
        from thespis.transport.grpc_client import Line

        return Line(ctx, invite, layout, inference.tls)
    from thespis.transport.shm_client import NearLine

    return NearLine(ctx, invite, layout)


def build_listener(ctx: Context, cfg: Experiment, inference: InferenceConfig) -> AnyDoor | None:
    """Where actors come in with streams of their own, if they do."""
    if not inference.streams(cfg.on):
        return None
    from thespis.envs.make import describe
    from thespis.transport.inference_schema import Layout

    spaces = describe(cfg.env_config)
    layout = Layout.of(spaces.observation_space, spaces.action_space, cfg.envs_per_actor)
    if inference.transport == "grpc":
        from thespis.transport.grpc_server import Door

        return Door(layout, ctx.address, inference.tls)
    from thespis.transport.shm_server import NearDoor

    return NearDoor(layout)
