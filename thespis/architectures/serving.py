"""Actions that another process gives: the settings, and the two ends of the way there."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thespis.config import Experiment, resolve
from thespis.errors import ThespisError

if TYPE_CHECKING:
    from thespis.envs.autoreset import Environments
    from thespis.roles.inference import AnyDoor
    from thespis.runtime.context import Context
    from thespis.wire.tls import Tls


@dataclass(frozen=True)
class Served(Experiment):
    """What it takes to be given actions, beside the settings of an algorithm."""

    algorithm: Literal["vtrace", "r2d2", "ppo"] = "vtrace"
    """vtrace learns as IMPALA does, r2d2 from a replay, ppo in rounds of one version; each has its own settings."""
    inference_batch: int = 0
    """Environments that are answered at once; 0 for half of all, so that one half steps while the other is answered."""
    inference_wait: float = 0.002
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

    def check_inference(self) -> None:
        """Refuse what cannot be served."""
        if self.inference_batch < 0 or not self.inference_wait >= 0:
            raise ThespisError("--inference-batch and --inference-wait cannot be negative")
        if self.inference_batch > self.actors * self.envs_per_actor:
            raise ThespisError(
                f"--inference-batch {self.inference_batch} is never full with {self.actors} actors of "
                f"{self.envs_per_actor} environments; give at most {self.actors * self.envs_per_actor}"
            )
        if self.double_buffer and self.envs_per_actor % 2:
            raise ThespisError(f"--double-buffer halves --envs-per-actor, which is {self.envs_per_actor}; make it even")
        self._check_transport()

    def _check_transport(self) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if self.transport == "grpc" and self.on == "simulation":
            raise ThespisError("--transport grpc opens real sockets, the simulation has none; leave it out there")
        if (any(files) or self.tls_name) and (self.transport != "grpc" or self.on != "ray"):
            raise ThespisError(
                "--tls-* are for --transport grpc --on ray; on one machine nobody else can open the socket"
            )
        if (any(files) or self.tls_name) and not all(files):
            raise ThespisError("give --tls-cert, --tls-key and --tls-ca together")

    @property
    def streams(self) -> bool:
        """Whether each actor has a stream of its own to the server."""
        return self.transport == "grpc" or self.on == "local"

    @property
    def tls(self) -> Tls | None:
        """What streams are encrypted with, if they are."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        from thespis.wire.tls import Tls

        return Tls(self.tls_cert, self.tls_key, self.tls_ca, self.tls_name)

    def absolute(self) -> dict[str, Any]:
        """Files as nodes find them that have another working directory."""
        files = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        return {name: path.resolve() for name, path in files.items() if path is not None}

    @property
    def groups(self) -> int:
        """Groups of environments that an actor steps in turns."""
        return 2 if self.double_buffer else 1

    @property
    def batch_rows(self) -> int:
        return self.inference_batch or max(1, self.actors * self.envs_per_actor // 2)


def refuse_transport(cfg: Served) -> None:
    """Say no to streams that could not be opened."""
    if cfg.transport != "grpc":
        return
    if importlib.util.find_spec("grpc") is None:
        raise ThespisError("gRPC is not installed; install it with: pip install 'thespis[grpc]'")
    if cfg.tls is not None:
        cfg.tls.check()


def line(ctx: Context, cfg: Served, act: Any, envs: Environments) -> Any:
    """An actor's way to ask for actions: the edge itself, or a stream that it is invited to open."""
    if not cfg.streams:
        return act
    from thespis.wire.schema import Layout

    layout = Layout.of(envs.observation_space, envs.action_space, cfg.envs_per_actor)
    invite = act.beside("invite")
    if cfg.transport == "grpc":
        from thespis.wire.line import Line

        return Line(ctx, invite, layout, cfg.tls)
    from thespis.wire.near_line import NearLine

    return NearLine(ctx, invite, layout)


def door(ctx: Context, cfg: Served) -> AnyDoor | None:
    """Where actors come in with streams of their own, if they do."""
    if not cfg.streams:
        return None
    from thespis.envs.make import describe
    from thespis.wire.schema import Layout

    spaces = describe(resolve(cfg.env))
    layout = Layout.of(spaces.observation_space, spaces.action_space, cfg.envs_per_actor)
    if cfg.transport == "grpc":
        from thespis.wire.door import Door

        return Door(layout, ctx.address, cfg.tls)
    from thespis.wire.near_door import NearDoor

    return NearDoor(layout)
