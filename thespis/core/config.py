"""Settings as frozen dataclasses. One definition serves command-line flags, YAML files and Python arguments.

This module imports neither torch nor an environment, so `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from thespis.core.bounds import (
    Bounds,
    Count,
    CountOrZero,
    Decay,
    Fraction,
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
    """Reward shaping in the learner. Reported returns stay unshaped."""

    kind: Literal["none", "sign", "abs_one", "scale"] = "none"
    """Reward shaping: none, sign (-1, 0 or 1), abs_one (clip to [-1, 1]), or scale (multiply by --reward.scale)."""
    scale: Positive = 1.0
    """Reward factor for --reward.kind scale."""
    normalize: bool = False
    """Divide rewards by the running standard deviation of discounted returns, before --reward.kind applies."""


@dataclass(frozen=True)
class NetworkConfig:
    """The policy-and-value network."""

    FIXED: ClassVar[tuple[str, ...]] = ("*",)  # saved weights fit this network only
    torso: Literal["auto", "mlp", "nature", "resnet"] = "auto"
    """Torso: mlp, nature (DQN's CNN), resnet (IMPALA's deep residual net), or auto (nature for images, else mlp)."""
    hidden: tuple[LayerSize, ...] = (64, 64)
    """Hidden layer sizes of the MLP."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function of the MLP."""
    lstm: Annotated[int, Bounds(least=0, most=65_536)] = 0
    """Size of the LSTM after the torso; 0 builds a feed-forward network."""
    factory: Spec = ""
    """Custom network: file.py::function or module::function; called with observation space and action space."""
    normalize_observations: bool = False
    """Normalise vector observations by running statistics. The learner keeps them and publishes them with weights."""

    def check_feed_forward(self) -> None:
        """Refuse an LSTM: a batch of transitions lacks the steps before each transition."""
        if self.lstm:
            raise ThespisError("the algorithm learns from single transitions, so --network.lstm must stay 0")


@dataclass(frozen=True)
class QNetworkConfig(NetworkConfig):
    """The Q-network: one value per discrete action."""

    activation: Literal["tanh", "relu"] = "relu"
    """Activation function of the MLP."""
    dueling: bool = False
    """Use dueling heads: one for the state value, one for the advantages."""
    feedback: bool = True
    """Feed the last action and reward to the LSTM."""


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer: its size, its sampler, and the samples per insert."""

    FIXED: ClassVar[tuple[str, ...]] = ("*",)  # a saved replay has these sizes and counts samples from its first insert
    capacity: Count = 100_000
    """Replay buffer size in steps; new steps overwrite the oldest."""
    bytes: CountOrZero = 0
    """Memory limit of the replay buffer in bytes; it holds fewer steps if needed. 0 sets no limit."""
    warm_up: Count = 1_000
    """Items to insert before the learner samples the first."""
    samples_per_insert: Positive = 8.0
    """Mean number of times that each item is sampled. Actors and learner wait for each other to keep this ratio."""
    error: NonNegative = 0.0
    """Tolerance of --replay.samples-per-insert, in samples; 0 allows twice the least that avoids a deadlock."""
    priority_exponent: NonNegative = 0.0
    """Priority exponent (alpha) of prioritised replay; 0 samples uniformly."""
    actor_priorities: bool = False
    """Start new items with the TD error that their actor computed; otherwise with the highest priority so far."""
    importance_exponent: NonNegative = 0.4
    """Importance-sampling exponent (beta); 1 corrects the bias of prioritised sampling fully, 0 not at all."""
    sampler: Literal["random", "fifo"] = "random"
    """Sampler: random (uniform, or by priority with --replay.priority-exponent), or fifo (oldest first)."""
    max_times_sampled: Annotated[int, Bounds(least=0, most=65_535)] = 0
    """Remove an item after this many samples; 0 keeps it until it is overwritten."""
    shards: ShardCount = 1
    """Split the replay buffer over this many processes. An actor inserts into one; every batch samples all."""

    def __post_init__(self) -> None:
        if self.sampler == "fifo" and (not self.max_times_sampled or self.priority_exponent):
            raise ThespisError(
                "--replay.sampler fifo would sample the oldest item forever and ignores priorities; give "
                "--replay.max-times-sampled and leave --replay.priority-exponent 0"
            )
        if 0 < self.max_times_sampled < self.samples_per_insert:
            raise ThespisError(
                f"{self.samples_per_insert:g} samples per insert are impossible if items are removed after "
                f"{self.max_times_sampled}; lower --replay.samples-per-insert or raise --replay.max-times-sampled"
            )

    @property
    def shard(self) -> ReplayConfig:
        """The settings of one shard: an equal part of the sizes."""
        number = self.shards
        return replace(
            self,
            capacity=self.capacity // number,
            bytes=self.bytes // number,
            warm_up=-(-self.warm_up // number),
            error=self.error / number,
            shards=1,
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser."""

    FIXED: ClassVar[tuple[str, ...]] = ("momentum",)  # a checkpoint without momentum holds no velocity
    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("anneal",)
    kind: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adam"
    """Optimiser: adam, rmsprop (epsilon inside the root, as in the papers), adagrad or sgd."""
    learning_rate: NonNegative = 1e-3
    """Learning rate at the start of the run."""
    anneal: bool = False
    """Anneal the learning rate linearly to 0 over the run."""
    epsilon: Positive = 1e-8
    """Epsilon of adam, rmsprop and adagrad."""
    decay: Decay = 0.99
    """Decay rate of the mean square, for rmsprop."""
    momentum: Decay = 0.0
    """Momentum, for rmsprop."""
    beta2: Decay = 0.999
    """Decay rate of the mean square, for adam. A lower value limits the step after a period of small gradients."""
    clip: NonNegative = 40.0
    """Clip gradients to this global norm; 0 does not clip."""


@dataclass(frozen=True)
class Unrolls:
    """Unrolls: consecutive steps of all environments of an actor. The learner uses each once and tolerates some lag."""

    KIND: ClassVar = "unrolls"

    unroll_length: Count = 16
    """Steps per unroll. An actor sends an unroll, then pulls newer weights."""


@dataclass(frozen=True)
class Rounds:
    """On-policy rounds: one unroll per actor, all of one weight version. The next round waits for the next version."""

    KIND: ClassVar = "rounds of one version"

    unroll_length: Count = 32
    """Steps of each environment per round."""


@dataclass(frozen=True)
class Transitions:
    """n-step transitions, sampled from a replay buffer."""

    KIND: ClassVar = "transitions"

    unroll_length: Count = 4
    """Steps per unroll. An actor sends an unroll, then pulls newer weights."""
    n_step: Count = 3
    """Length of n-step returns."""
    batch: Count = 128
    """Batch size in transitions."""
    batches_per_draw: Count = 4
    """Batches per request to the replay buffer."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    @property
    def per_sample(self) -> int:
        """Transitions per request to the replay."""
        return self.batch * self.batches_per_draw

    def per_insert(self, environments: int) -> int:
        """Upper bound of the transitions that one unroll completes: its own, and the pending ones before it."""
        waiting = self.n_step + (1 if self.replay.actor_priorities else 0)
        return environments * (self.unroll_length + waiting)

    def check_rows(self, rows: int, environments: int) -> None:
        """Accept any size: the replay itself refuses a capacity below two unrolls of every actor."""


@dataclass(frozen=True)
class Sequences:
    """Sequences of steps, sampled from a replay buffer, for recurrent networks.

    unroll     |--------|--------|--------|      one sequence starts with each unroll
    sequence   [burn-in |     trained     ]
    """

    KIND: ClassVar = "sequences"

    unroll_length: Count = 10
    """Steps per unroll. An actor sends an unroll, then pulls newer weights; each starts a sequence (paper: 40)."""
    sequence_length: Count = 20
    """Trained steps per sequence (paper: 80)."""
    burn_in: CountOrZero = 10
    """Burn-in steps before the trained steps refresh the recurrent state; none at an episode's start (paper: 40)."""
    state: Literal["stored", "zero"] = "stored"
    """Recurrent state at the start of burn-in: stored (the actor's state), or zero."""
    eta: Fraction = 0.9
    """Priority mix (eta): a sequence's priority is eta * max + (1 - eta) * mean of its TD errors (paper: 0.9)."""
    n_step: Count = 5
    """Length of n-step returns (paper: 5)."""
    batch: Count = 32
    """Batch size in sequences (paper: 64)."""
    batches_per_draw: Count = 1
    """Batches per request to the replay buffer."""
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(
            warm_up=200,
            samples_per_insert=4.0,
            priority_exponent=0.9,
            importance_exponent=0.6,
            actor_priorities=True,
        )
    )

    def __post_init__(self) -> None:
        if self.unroll_length + self.burn_in > self.sequence_length:
            raise ThespisError(
                f"sequences start every {self.unroll_length} steps and burn in {self.burn_in}, so with "
                f"--sequence-length {self.sequence_length} some steps would never be trained; give it at least "
                f"{self.unroll_length + self.burn_in}, or lower --unroll-length or --burn-in"
            )

    @property
    def per_sample(self) -> int:
        """Sequences per request to the replay."""
        return self.batch * self.batches_per_draw

    def per_insert(self, environments: int) -> int:
        """Upper bound of the sequences that one unroll completes: the open ones, and one per episode end."""
        waiting = (self.burn_in + self.sequence_length) // self.unroll_length + 2
        return environments * (self.unroll_length + waiting)

    def check_rows(self, rows: int, environments: int) -> None:
        """Refuse a replay of `rows` steps if it could overwrite incomplete sequences."""
        window = self.burn_in + self.sequence_length + 2 * self.unroll_length
        least = max(2 * environments * window, self.replay.warm_up * self.unroll_length)
        if rows < least:
            raise ThespisError(
                f"a replay of {rows} steps cannot hold the sequences in progress or the warm-up "
                f"({self.replay.warm_up} sequences); raise --replay.capacity and --replay.bytes to {least} steps"
            )


@dataclass(frozen=True)
class Experiment:
    """The settings that every architecture has."""

    env: Spec = "CartPole-v1"
    """Gymnasium id, verbatim (CartPole-v1, ALE/Pong-v5, module:EnvId-v0), or file.py::function that builds one.
    --env-kwargs.NAME VALUE passes an argument to its constructor; repeat it for more."""
    on: Literal["local", "simulation", "ray"] = "local"
    """Runtime: local (one process per role), simulation (one process, virtual time, deterministic), or ray."""
    seed: CountOrZero = 0
    """Random seed of the whole run: environments, networks and exploration."""
    total_steps: Count | None = 1_000_000
    """Stop after this many environment steps of all actors together (frame skip not multiplied). The run may exceed it
    by one unroll per actor. None sets no limit."""
    total_seconds: Positive | None = None
    """Stop this many seconds after the first environment step (virtual seconds in the simulation). Without
    --total-steps, the run has no step limit and learning rates anneal over these seconds."""
    stop_at_return: float | None = None
    """Stop when the mean return of the last 100 training episodes reaches this value."""
    actors: RoleCount = field(default_factory=lambda: min(max(1, available_cores() - 1), 8))
    """Number of actor processes that step environments. The default leaves one core to the learner and is at most 8."""
    envs_per_actor: Count = 32
    """Environments per actor; the actor steps them as one batch."""
    run_dir: Path | None = None
    """Directory for metrics, checkpoints and logs; by default runs/<architecture>-<env>-s<seed>-<n>."""
    report_every: Positive = 1.0
    """Write metrics every N seconds."""
    track_info: tuple[str, ...] = ()
    """Names of numbers in an episode's last `info` to report as rollout/info/NAME, besides `is_success`."""
    eval_every: NonNegative = 30.0
    """Evaluate every N seconds; 0 evaluates only at the end."""
    eval_episodes: CountOrZero = 10
    """Greedy episodes per evaluation; 0 disables evaluation."""
    eval_max_steps: Count = 30_000
    """Cut an evaluation episode after this many steps and count its return so far (longest Atari episode: 27,000)."""
    checkpoint_every: Positive = 30.0
    """Save a checkpoint every N seconds. The run always saves one at its end."""
    save_every: Count | None = None
    """Also save a checkpoint every N environment steps."""
    keep: Count = 2
    """Number of recent checkpoints to keep, besides the best one."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, by name."""
    wrapper: tuple[Spec, ...] = ()
    """Environment wrapper: file.py::name or module::name. Repeat it for several, the innermost first."""
    frame_stack: Count | None = None
    """Number of recent observations to stack; by default 1, and 4 for Atari."""
    time_limit: Count | None = None
    """Truncate episodes after this many steps, instead of the environment's own limit."""
    env_timeout: Positive = 60.0
    """Kill a process if its environment takes longer than N seconds to construct, step or close."""
    stall_timeout: Positive = 60.0
    """End the run after N seconds without an update, and report which role waits for which."""
    callback: tuple[str, ...] = ()
    """Callback for metrics, checkpoints and the end of the run: file.py::name, module::name, wandb or mlflow
    (docs/callbacks.md)."""
    ray_address: str | None = None
    """Ray cluster to join: `auto` or HOST:PORT. By default the run starts Ray on this machine alone."""
    actors_per_node: Count | None = None
    """On Ray: place exactly N actors on each node; by default Ray places them where CPUs are free."""
    placement_timeout: Positive = 60.0
    """On Ray: end the run after a role has waited N seconds for resources, and report the missing resources."""
    cost_model: Path | None = None
    """In simulation: YAML file with the cost of work and edges (docs/simulation.md)."""
    faults: tuple[str, ...] = ()
    """In simulation: faults to inject, e.g. "kill actor 0 at 2.5", "slow actor 1 by 10", "lose actor.queue.insert at
    2"."""
    init_from: Path | None = None
    """Start from the weights of another run, given as a run directory or a checkpoint (docs/transfer.md)."""
    init_checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint of the --init-from run to load."""
    init_only: tuple[str, ...] = ()
    """Parts of the network to load from --init-from, by name, e.g. torso core; by default all."""

    FIXED: ClassVar = ("seed", "run_dir", "envs_per_actor", "init_from", "init_checkpoint", "init_only")
    """Names of the settings that `thespis resume` cannot change."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.total_steps is None and self.total_seconds is None:
            raise ThespisError("the run has no end: give --total-steps, --total-seconds, or both")
        if self.on != "simulation" and (self.faults or self.cost_model):
            raise ThespisError("--faults and --cost-model need the simulation; add --on simulation")
        if self.on != "ray" and (self.ray_address or self.actors_per_node):
            raise ThespisError("--ray-address and --actors-per-node need Ray; add --on ray")
        if self.init_from is None and (self.init_only or self.init_checkpoint != "newest"):
            raise ThespisError("--init-only and --init-checkpoint need --init-from; give it a run directory")

    @property
    def budget(self) -> Budget:
        """The step and time limits of the run."""
        return Budget(self.total_steps, self.total_seconds)

    if TYPE_CHECKING:

        @property
        def algorithm(self) -> Any:
            """The algorithm. An architecture declares this field with the kinds of item that it carries."""

    @property
    def learned(self) -> Any:
        """The algorithm whose policy the run trains; None if a custom architecture has no `algorithm` field."""
        return getattr(self, "algorithm", None)

    @property
    def exploration(self) -> str:
        """How training episodes explore, as one phrase; explains why their returns may differ from evaluations."""
        return "" if self.learned is None else str(self.learned.exploration.describe())

    @property
    def env_config(self) -> EnvConfig:
        """The settings that build one environment."""
        return EnvConfig(self.env, self.env_kwargs, self.wrapper, self.frame_stack, self.time_limit)

    @property
    def env_name(self) -> str:
        """Name of the environment, for display and file names."""
        return self.env_config.name
