"""Settings: frozen dataclasses, the same as command-line flags, as YAML, and as Python arguments.

Nothing here imports torch or an environment, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from thespis.core.bounds import (
    Bounds,
    Count,
    CountOrZero,
    Decay,
    LayerSize,
    NonNegative,
    Positive,
    RoleCount,
    ShardCount,
    check_numbers,
)
from thespis.core.budget import Budget
from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.system.cores import available_cores
from thespis.core.user_code import Spec


@dataclass(frozen=True)
class RewardConfig:
    """What the learner makes of rewards. Reported returns are never touched."""

    kind: Literal["none", "sign", "abs_one", "scale"] = "none"
    """none, sign (-1, 0, 1), abs_one (clip to [-1, 1]), or scale (multiply by `scale`)."""
    scale: Positive = 1.0
    """Factor for kind `scale`."""
    normalize: bool = False
    """Divide by the running standard deviation of discounted returns (applied before kind)."""


@dataclass(frozen=True)
class NetworkConfig:
    """The policy-and-value network."""

    FIXED: ClassVar[tuple[str, ...]] = ("*",)  # the weights that a run has saved are of this network
    torso: Literal["auto", "mlp", "nature", "resnet"] = "auto"
    """mlp, nature (the CNN of DQN), resnet (IMPALA's deep residual net); auto: nature for images, mlp otherwise."""
    hidden: tuple[LayerSize, ...] = (64, 64)
    """Layer sizes of the mlp."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the mlp."""
    lstm: Annotated[int, Bounds(least=0, most=65_536)] = 0
    """Size of the LSTM after the torso; 0 for a feed-forward network."""
    factory: Spec = ""
    """A network of your own: file.py::function or module::function, called with the two spaces."""
    normalize_observations: bool = False
    """Normalise vector observations by running statistics, kept by the learner and published with the weights."""


@dataclass(frozen=True)
class QNetworkConfig(NetworkConfig):
    """The network of action values."""

    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the mlp."""
    dueling: bool = False
    """Separate heads for the value of an observation and the advantages of actions."""
    feedback: bool = True
    """The LSTM also reads the last action and reward."""


@dataclass(frozen=True)
class ReplayConfig:
    """How steps are kept and how often each is learned from."""

    FIXED: ClassVar[tuple[str, ...]] = ("*",)  # a saved replay has these sizes, and counts its samples from the start
    capacity: Count = 100_000
    """Steps to keep; the oldest are overwritten."""
    bytes: CountOrZero = 0
    """Most memory for them, in bytes: fewer steps are kept if need be; 0 for as much as the capacity takes."""
    warm_up: Count = 1_000
    """Transitions to collect before the first is sampled."""
    samples_per_insert: Positive = 8.0
    """How often each transition is sampled, on average; actors and learner wait for each other to keep to it."""
    error: NonNegative = 0.0
    """Samples by which that may be off at any time; 0 for the least that lets everybody go on, twice over."""
    priority_exponent: NonNegative = 0.0
    """How much the last TD error decides what is sampled; 0 samples evenly."""
    actor_priorities: bool = False
    """A new transition's priority is the TD error its actor saw; else it is the highest so far."""
    importance_exponent: NonNegative = 0.4
    """How much of the bias of uneven sampling is undone by importance weights."""
    sampler: Literal["random", "fifo"] = "random"
    """random (evenly, or by priority if there is an exponent), or fifo (the oldest first)."""
    max_times_sampled: Annotated[int, Bounds(least=0, most=65_535)] = 0
    """Draws after which a transition is removed; 0 keeps it until it is overwritten."""
    shards: ShardCount = 1
    """Replays that share all this, each in its own process: an actor inserts into one, batches come from all."""

    def __post_init__(self) -> None:
        if self.sampler == "fifo" and (not self.max_times_sampled or self.priority_exponent):
            raise ThespisError(
                "fifo would draw the oldest for ever and knows no priorities; give --replay.max-times-sampled, and "
                "leave --replay.priority-exponent 0"
            )
        if 0 < self.max_times_sampled < self.samples_per_insert:
            raise ThespisError(
                f"{self.samples_per_insert:g} samples per insert cannot be had of transitions that are removed after "
                f"{self.max_times_sampled}; lower --replay.samples-per-insert or raise --replay.max-times-sampled"
            )

    @property
    def shard(self) -> ReplayConfig:
        """What one of the shards is told."""
        number = self.shards
        return dataclasses.replace(
            self,
            capacity=self.capacity // number,
            bytes=self.bytes // number,
            warm_up=-(-self.warm_up // number),
            error=self.error / number,
            shards=1,
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients are applied."""

    FIXED: ClassVar[tuple[str, ...]] = ("momentum",)  # without one there is no velocity among what is saved
    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("anneal",)
    kind: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adam"
    """adam, rmsprop (epsilon inside the root, as in the papers), adagrad or sgd."""
    learning_rate: NonNegative = 1e-3
    """Step size at the start."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    epsilon: Positive = 1e-8
    """The optimiser's epsilon; sgd has none."""
    decay: Decay = 0.99
    """rmsprop: decay of the mean square."""
    momentum: Decay = 0.0
    """rmsprop: momentum."""
    beta2: Decay = 0.999
    """adam: decay of the mean square. A lower one keeps a surprise after a quiet time from becoming a leap."""
    clip: NonNegative = 40.0
    """Largest global norm of the gradients; 0 does not clip."""


@dataclass(frozen=True)
class Unrolls:
    """Consecutive steps of all environments of an actor, each learned from once, perhaps a few versions late."""

    KIND: ClassVar = "unrolls"

    unroll_length: Count = 16
    """Steps per unroll: an actor sends them, and takes newer weights, this often."""


@dataclass(frozen=True)
class Rounds:
    """Unrolls that one version of the weights made, one of each actor; the next round waits for the next version."""

    KIND: ClassVar = "rounds of one version"

    unroll_length: Count = 32
    """Steps of each environment per update."""


@dataclass(frozen=True)
class Transitions:
    """n-step transitions in a replay."""

    KIND: ClassVar = "transitions"

    unroll_length: Count = 4
    """Steps per unroll: an actor sends them, and takes newer weights, this often."""
    n_step: Count = 3
    """Rewards summed before bootstrapping."""
    batch: Count = 128
    """Transitions per gradient."""
    batches_per_draw: Count = 4
    """Batches that one call to the replay brings."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    @property
    def per_sample(self) -> int:
        """Transitions that one call to the replay brings."""
        return self.batch * self.batches_per_draw

    def per_insert(self, environments: int) -> int:
        """The most transitions that one unroll completes: its own, and those that were waiting for it."""
        waiting = self.n_step + (1 if self.replay.actor_priorities else 0)
        return environments * (self.unroll_length + waiting)

    def check_rows(self, rows: int, environments: int) -> None:
        """A replay refuses by itself what two unrolls of every actor would overflow."""


@dataclass(frozen=True)
class Experiment:
    """What every architecture can be told."""

    env: Spec = "CartPole-v1"
    """Gymnasium id, verbatim (CartPole-v1, ALE/Pong-v5, module:EnvId-v0), or file.py::function that makes one.
    --env-kwargs.NAME VALUE goes to its constructor, and may be given for several names."""
    on: Literal["local", "simulation", "ray"] = "local"
    """Runtime: local (one process per role), simulation (one process, virtual time, deterministic), or ray."""
    seed: CountOrZero = 0
    """Everything random in the run follows from it."""
    total_steps: Count | None = 1_000_000
    """Stop after this many environment steps of all actors together (frame-skip not multiplied), and at most an unroll
    of each actor; None sets no limit."""
    total_seconds: Positive | None = None
    """Stop this many seconds after the first environment step; in the simulation they are virtual. Without
    --total-steps beside it there is no limit of steps, and learning rates anneal over these seconds."""
    stop_at_return: float | None = None
    """Stop when the mean of the last 100 training episodes reaches this."""
    actors: RoleCount = field(default_factory=lambda: min(max(1, available_cores() - 1), 8))
    """How many actors step environments; by default one per core that the run may use and the learner leaves, 8 at
    most."""
    envs_per_actor: Count = 32
    """Environments each actor steps side by side."""
    run_dir: Path | None = None
    """Where to write; runs/<architecture>-<env>-s<seed>-<n> if not given."""
    report_every: Positive = 1.0
    """Seconds between rows of metrics."""
    track_info: tuple[str, ...] = ()
    """Numbers to report of the `info` that ends an episode, beside `is_success`, as rollout/info/NAME: their means."""
    eval_every: NonNegative = 30.0
    """Seconds between evaluations; 0 evaluates only at the end."""
    eval_episodes: CountOrZero = 10
    """Greedy episodes per evaluation; 0 switches the evaluator off."""
    eval_max_steps: Count = 30_000
    """Steps after which an episode of an evaluation is cut; its return so far counts (Atari's longest: 27,000)."""
    checkpoint_every: Positive = 30.0
    """Seconds between checkpoints; there is always one at the end."""
    save_every: Count | None = None
    """Environment steps between checkpoints, beside --checkpoint-every: whichever is due first."""
    keep: Count = 2
    """Checkpoints to keep beside the best one."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, by name."""
    wrapper: tuple[Spec, ...] = ()
    """file.py::name or module::name that wraps the environment; may be given several times, the innermost first."""
    frame_stack: Count | None = None
    """Observations that the agent sees at once, the last this many; by default 1, and 4 for Atari."""
    time_limit: Count | None = None
    """Steps after which an episode is truncated, instead of those that the environment's id says."""
    env_timeout: Positive = 60.0
    """Seconds an environment may take to be made, for one step, or to close, before its process is killed."""
    stall_timeout: Positive = 60.0
    """Seconds without an update after which the run says who waits for whom, and ends."""
    callback: tuple[str, ...] = ()
    """Told of rows, checkpoints and the end: file.py::name, module::name, wandb or mlflow (docs/callbacks.md)."""
    ray_address: str | None = None
    """ray: the cluster to join, `auto` or HOST:PORT; without it a Ray of this machine alone is started for the run."""
    actors_per_node: Count | None = None
    """ray: exactly this many actors on each node; by default they are spread as the cluster has room."""
    placement_timeout: Positive = 60.0
    """ray: seconds a role may wait for a place in the cluster before the run says what is missing."""
    cost_model: Path | None = None
    """simulation: YAML file with the cost of work and edges (docs/simulation.md)."""
    faults: tuple[str, ...] = ()
    """simulation: e.g. "kill actor 0 at 2.5", "slow actor 1 by 10", "lose actor.queue.insert at 2"."""
    init_from: Path | None = None
    """Start from the weights of another run: its directory, or one of its checkpoints (docs/transfer.md)."""
    init_checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint of the run that --init-from names."""
    init_only: tuple[str, ...] = ()
    """Parts of the network to take from --init-from, by name, e.g. torso core; by default all of it."""

    FIXED: ClassVar[tuple[str, ...]] = (
        "seed",
        "run_dir",
        "envs_per_actor",
        "init_from",
        "init_checkpoint",
        "init_only",
    )
    """Of these settings, those that `thespis resume` cannot change."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.total_steps is None and self.total_seconds is None:
            raise ThespisError("nothing says when the run is over: give --total-steps, --total-seconds, or both")
        if self.on != "simulation" and (self.faults or self.cost_model):
            raise ThespisError("--faults and --cost-model belong to the simulation; add --on simulation")
        if self.on != "ray" and (self.ray_address or self.actors_per_node):
            raise ThespisError("--ray-address and --actors-per-node belong to Ray; add --on ray")
        if self.init_from is None and (self.init_only or self.init_checkpoint != "newest"):
            raise ThespisError("--init-only and --init-checkpoint belong to --init-from; name a run with it")

    @property
    def budget(self) -> Budget:
        return Budget(self.total_steps, self.total_seconds)

    if TYPE_CHECKING:

        @property
        def algorithm(self) -> Any:
            """What is learned and how. An architecture declares the field, with the items that it carries."""

    @property
    def learned(self) -> Any:
        """The algorithm whose policy the run trains; None for an architecture of one's own that has no such field."""
        return getattr(self, "algorithm", None)

    @property
    def exploration(self) -> str:
        """How training episodes explore, in words: why their return may differ from that of an evaluation."""
        return "" if self.learned is None else str(self.learned.exploration.describe())

    @property
    def env_config(self) -> EnvConfig:
        return EnvConfig(self.env, self.env_kwargs, self.wrapper, self.frame_stack, self.time_limit)

    @property
    def env_name(self) -> str:
        return self.env_config.name


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

    def absolute(self) -> InferenceConfig:
        """Files as nodes find them that have another working directory."""
        files: dict[str, Any] = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        return dataclasses.replace(self, **{name: path.resolve() for name, path in files.items() if path is not None})

    @property
    def groups(self) -> int:
        """Groups of environments that an actor steps in turns."""
        return 2 if self.double_buffer else 1

    def batch_rows(self, environments: int) -> int:
        """Rows that make a batch full, of so many environments in all."""
        return self.inference_batch or max(1, environments // 2)
