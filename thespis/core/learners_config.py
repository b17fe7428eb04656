"""The settings of learners, and of the roles between them and the actors: weights, queue, inference server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from thespis.core.bounds import Bounds, Count, CountOrZero, NonNegative, Positive, RoleCount
from thespis.core.config import Experiment, Rounds, Unrolls
from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.core.program import Placement, Program

RESTARTS = 100
"""Restarts of each of several learners, and of each aggregator. Many are harmless: the others continue meanwhile."""
_MOST_PROCESSES = 64
_SHARE, _WARM_UP, _RANK = 0.01, 50, 2
_FIRST_SHARE = 0.25


@dataclass(frozen=True)
class CompressionConfig:
    """Compression of the gradients that learners send."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("*",)

    gradients: Literal["float32", "float16", "bfloat16", "int8", "topk", "sign", "powersgd"] = "float32"
    """Encoding of gradients in messages: float32 (exact), float16 or bfloat16 (half the bytes), int8 (a quarter), topk
    (only the largest --gradients-share), sign (one bit per number), or powersgd (low-rank factors of each matrix)."""
    gradients_share: Annotated[float, Bounds(above=0, most=0.5)] = _SHARE
    """Share of the numbers of a gradient that topk sends: those of the largest magnitude."""
    gradients_warm_up: CountOrZero = _WARM_UP
    """Gradients over which the share of topk falls from 0.25 to --gradients-share (Lin et al., 2018); 0 disables this
    warm-up."""
    gradients_rank: Count = _RANK
    """Rank of the factors of powersgd (Vogels et al., 2019)."""
    gradients_feedback: bool = True
    """Error feedback: add the part of a gradient that compression loses to the next gradient."""

    def __post_init__(self) -> None:
        if self.gradients != "topk" and self.gradients_share != _SHARE:
            raise ThespisError("--gradients-share is the share that topk sends; give --gradients topk, or leave it off")
        if self.gradients != "topk" and self.gradients_warm_up != _WARM_UP:
            raise ThespisError("--gradients-warm-up is for the share of topk; give --gradients topk, or leave it off")
        if self.gradients != "powersgd" and self.gradients_rank != _RANK:
            raise ThespisError("--gradients-rank is the rank of powersgd; give --gradients powersgd, or leave it off")
        if not self.compresses and not self.gradients_feedback:
            raise ThespisError(
                "--gradients float32 loses nothing, so there is no error to feed back; leave off --gradients-feedback"
            )

    @property
    def compresses(self) -> bool:
        """Whether gradients have another encoding than float32."""
        return self.gradients != "float32"

    def share_after(self, number: int) -> float:
        """The share that topk sends after `number` gradients. It falls exponentially during the warm-up."""
        first = max(_FIRST_SHARE, self.gradients_share)
        done = min(1.0, number / self.gradients_warm_up) if self.gradients_warm_up else 1.0
        return float(first * (self.gradients_share / first) ** done)

    def describe(self) -> str:
        """One phrase for the log of a run."""
        detail = {"topk": f" of {self.gradients_share:g}", "powersgd": f" of rank {self.gradients_rank}"}
        feedback = "with" if self.gradients_feedback else "without"
        return f"gradients: {self.gradients}{detail.get(self.gradients, '')}, {feedback} error feedback"


UNCOMPRESSED = CompressionConfig()
"""Gradients in float32."""


@dataclass(frozen=True)
class WeightsConfig:
    """Compression of the weights that actors pull."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("weights",)

    weights: Literal["float32", "bfloat16", "delta"] = "float32"
    """Form of the weights that actors pull: float32 (exact), bfloat16 (rounded, half the bytes), or delta (the same
    weights as bfloat16, sent as the difference from the actor's version)."""

    @property
    def compresses(self) -> bool:
        """Whether actors pull weights in another form than float32."""
        return self.weights != "float32"

    def describe(self) -> str:
        """One phrase for the log of a run."""
        return f"weights: actors pull {self.weights}, evaluators float32"


@dataclass(frozen=True)
class ParallelConfig:
    """Division of each learner's network over several processes."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("parallel",)

    parallel: str = "none"
    """Divide the network of each learner over several processes: tensor=N divides its matrices into N parts,
    pipeline=2 puts its last layers into a second process, none divides nothing. This is for large networks; small ones
    become slower."""

    def __post_init__(self) -> None:
        if self.processes > _MOST_PROCESSES:
            raise ThespisError(f"--parallel {self.parallel} divides too often; give at most tensor={_MOST_PROCESSES}")

    @property
    def divides(self) -> bool:
        """Whether a learner has more than one process."""
        return self.processes > 1

    @property
    def processes(self) -> int:
        """The number of processes of each learner."""
        if self.parallel == "none":
            return 1
        kind, _, number = self.parallel.partition("=")
        try:
            count = parse_int(number)
        except ValueError:
            count = 0
        if not (kind == "tensor" and count >= 2) and not (kind == "pipeline" and count == 2):
            raise ThespisError(f"--parallel is {self.parallel!r}; give none, tensor=2 (or more than 2), or pipeline=2")
        return count

    @property
    def pipeline(self) -> bool:
        """Whether the network is cut into stages, rather than every matrix into parts."""
        return self.parallel.startswith("pipeline")


@dataclass(frozen=True)
class LearnersConfig:
    """Several learners. Each takes batches from its own part of the actors; all make one update together."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("learners", "learners_per_node", "all_reduce")

    learners: RoleCount = 1
    """Number of learners. Each computes gradients of its own batch, and all apply the mean. An update then learns from
    --learners times as many steps."""
    learners_per_node: Annotated[int, Bounds(least=2)] | None = None
    """Put this many learners on each node of a cluster, and add their gradients up there, so that one message per node
    and update travels between the nodes."""
    all_reduce: Literal["group", "gloo"] = "group"
    """How gradients become their mean: group (each learner sends them to the group, which returns the mean), or gloo
    (torch.distributed adds them up in a ring of learners; for learners on several nodes of a trusted network)."""
    learner_timeout: Positive = 3.0
    """Continue without a learner that sends no heartbeat for N seconds. It must be longer than the computation of one
    gradient."""
    compression: CompressionConfig = inline(CompressionConfig)

    def check(self, cfg: Experiment, equal: bool = False) -> None:
        """Refuse learners without actors, and algorithms whose update cannot be divided.

        `equal`: refuse also learners with different numbers of actors, for on-policy rounds of equal size.
        """
        if self.learners == 1:
            if self.compression.compresses:
                raise ThespisError(
                    f"--gradients {self.compression.gradients} is for gradients that learners send to each other, and "
                    "one learner sends none; give --learners 2 or more, or leave it off"
                )
            if self.learners_per_node is not None:
                raise ThespisError("--learners-per-node is for several learners; give --learners, or leave it off")
            if self.all_reduce != "group":
                raise ThespisError(f"--all-reduce {self.all_reduce} is for several learners; give --learners 2 or more")
            return
        self._check_nodes()
        self._check_all_reduce(cfg)
        if self.learners > cfg.actors:
            raise ThespisError(
                f"--learners is {self.learners}, but there are only {cfg.actors} actors to feed them; give at least "
                f"--actors {self.learners}"
            )
        if equal and cfg.actors % self.learners:
            raise ThespisError(
                f"{cfg.actors} actors cannot be divided equally among --learners {self.learners}; give a multiple of "
                f"{self.learners} --actors"
            )
        reason = cfg.algorithm.indivisible
        if reason:
            raise ThespisError(f"--algorithm {cfg.algorithm.name} needs a single learner, because {reason}")

    def _check_nodes(self) -> None:
        if self.learners_per_node is None:
            return
        if self.learners % self.learners_per_node:
            raise ThespisError(
                f"{self.learners} learners cannot be divided into nodes of {self.learners_per_node}; give a multiple "
                f"of {self.learners_per_node} --learners"
            )
        if self.learners == self.learners_per_node:
            raise ThespisError(
                f"--learners-per-node {self.learners_per_node} puts all {self.learners} learners on one node, so "
                "nothing would travel between nodes; give more --learners, or leave it off"
            )

    def _check_all_reduce(self, cfg: Experiment) -> None:
        if self.all_reduce == "group":
            return
        flag = f"--all-reduce {self.all_reduce}"
        if cfg.on == "simulation":
            raise ThespisError(f"{flag} opens real connections, which the simulation has not; give --on local or ray")
        if self.compression.compresses:
            raise ThespisError(
                f"{flag} adds up float32, so it cannot send --gradients {self.compression.gradients}; leave off one"
            )
        if self.learners_per_node is not None:
            raise ThespisError(f"{flag} needs no aggregators; leave off it or --learners-per-node")

    @property
    def indices(self) -> range:
        """The indices of the learners."""
        return range(self.learners)

    @property
    def compression_of_learners(self) -> CompressionConfig:
        """Compression of what a learner sends: none if an aggregator on its node compresses."""
        return self.compression if self.learners_per_node is None else UNCOMPRESSED

    @property
    def nodes(self) -> list[range]:
        """The indices of the learners of each node."""
        size = self.learners_per_node or self.learners
        return [range(first, first + size) for first in range(0, self.learners, size)]

    def name(self, name: str, index: int) -> str:
        """The name of a learner's process or node group: `name` itself if there is one learner."""
        return name if self.learners == 1 else f"{name}-{index}"

    def learner_of(self, actor: int) -> int:
        """The index of the learner that an actor feeds."""
        return actor % self.learners

    def actors_of(self, learner: int, actors: int) -> int:
        """How many of all actors feed a learner."""
        return len(range(learner, actors, self.learners))

    def place(self, p: Program, process: str | None, index: int) -> Placement:
        """The placement of a learner or of its services. `process` is numbered if there are several learners."""
        name = None if process is None else self.name(process, index)
        restarts = 3 if self.learners == 1 else RESTARTS
        return p.at(process=name, colocate=self.node(index), restarts=restarts)

    def node(self, index: int) -> str:
        """The node group of a learner, of its services and of its aggregator."""
        if self.learners_per_node is None:
            return self.name("learner", index)
        return f"learners {index // self.learners_per_node}"


@dataclass(frozen=True)
class ReplayLearnersConfig(LearnersConfig):
    """Several learners, each with its own replay: an equal part of --replay.capacity."""

    FIXED: ClassVar[tuple[str, ...]] = ("learners",)  # a saved replay belongs to one of this many learners


@dataclass(frozen=True)
class OwnReplaysConfig(LearnersConfig):
    """Several learners, each with its own actors, weight store and replay: an equal part of --replay.capacity."""

    FIXED: ClassVar[tuple[str, ...]] = ReplayLearnersConfig.FIXED
    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    pulled: WeightsConfig = inline(WeightsConfig)
    publish_every: Count = 4
    """Publish weights every N updates."""


@dataclass(frozen=True)
class QueueConfig:
    """The queue of unrolls between actors and a learner, and the delay of its weights."""

    batch_unrolls: Count = 1
    """Batch size in unrolls; each unroll holds all environments of one actor (IMPALA's paper: 32 unrolls of one
    environment)."""
    queue_capacity: Count = 1
    """Capacity of the queue in unrolls. A larger queue increases lag."""
    forced_lag: CountOrZero = 0
    """Delay weights by N updates, to study lag."""

    def check(self, cfg: Experiment) -> None:
        """Refuse these settings for an algorithm without a queue of unrolls."""
        if self != QueueConfig() and cfg.algorithm.items.KIND != Unrolls.KIND:
            raise ThespisError(
                f"{cfg.algorithm.name} has no queue of unrolls; leave off --batch-unrolls, --queue-capacity and "
                "--forced-lag"
            )


@dataclass(frozen=True)
class PreemptionConfig:
    """What several learners do when some of them have no whole batch yet."""

    preempt: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """When this share of the learners has a whole batch, the others use the unrolls that they have, at least one. With
    1, all wait for whole batches (DD-PPO: 0.6)."""

    def check(self, cfg: Experiment, learners: int, unrolls: int, environments: int) -> None:
        """Refuse preemption that can never happen. `unrolls`: of a batch. `environments`: of an unroll."""
        if self.preempt == 1.0:
            return
        if cfg.algorithm.items.KIND not in (Unrolls.KIND, Rounds.KIND):
            raise ThespisError(f"--preempt is for batches from a queue, but {cfg.algorithm.name} learns from a replay")
        if learners == 1:
            raise ThespisError("--preempt is for several learners that wait for each other; give --learners")
        if math.ceil(self.preempt * learners - 1e-9) == learners:
            most = math.floor(100 * (learners - 1) / learners) / 100
            raise ThespisError(
                f"--preempt {self.preempt:g} of {learners} learners means all of them; give at most {most:g}"
            )
        if unrolls == 1:
            raise ThespisError("--preempt divides batches, but here a batch is a single unroll; use larger batches")
        cfg.algorithm.check_batch(environments)


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
