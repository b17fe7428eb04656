"""Settings: frozen dataclasses, the same as command-line flags, as YAML, and as Python arguments.

Nothing here imports torch or an environment, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thespis.budget import Budget
from thespis.errors import ThespisError

if TYPE_CHECKING:
    Spec = str | Callable[..., Any]
else:
    # The command line and YAML only know the text; from Python the function itself will do.
    Spec = str


@dataclass(frozen=True)
class RewardConfig:
    """What the learner makes of rewards. Reported returns are never touched."""

    kind: Literal["none", "sign", "abs_one", "scale"] = "none"
    """none, sign (-1, 0, 1), abs_one (clip to [-1, 1]), or scale (multiply by `scale`)."""
    scale: float = 1.0
    """Factor for kind `scale`."""
    normalize: bool = False
    """Divide by the running standard deviation of discounted returns (applied before kind)."""


@dataclass(frozen=True)
class NetworkConfig:
    """The policy-and-value network."""

    torso: Literal["auto", "mlp", "nature", "resnet"] = "auto"
    """mlp, nature (the CNN of DQN), resnet (IMPALA's deep residual net); auto: nature for images, mlp otherwise."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of the mlp."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the mlp."""
    lstm: int = 0
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
class DPGNetworkConfig(NetworkConfig):
    """The network that acts, and the critic that values what it does; they share nothing."""

    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the mlps."""
    hidden: tuple[int, ...] = (256, 256)
    """Layer sizes of the mlp that acts."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Layer sizes of the critic's mlp; the first reads the observation, the others its features and the action."""


@dataclass(frozen=True)
class EvolvedNetworkConfig(NetworkConfig):
    """The policy that evolution strategies perturb."""

    normalize_observations: bool = False
    """Normalise vector observations by the statistics of all generations before, the same for everybody."""
    virtual_batch_norm: bool = True
    """Normalise images after every convolution by what a fixed batch of random play gives in the perturbed network."""


@dataclass(frozen=True)
class CEMConfig:
    """The search for the best action by the cross-entropy method."""

    samples: int = 64
    """Actions scored in each iteration (QT-Opt paper: 64); choices alone, if no more than these, are all scored."""
    iterations: int = 2
    """Times that samples are drawn, scored, and the distribution fitted to the best (paper: 2)."""
    elites: int = 6
    """How many of the best it is fitted to (paper: 6)."""
    floor: float = 0.01
    """Least deviation that is fitted; actions reach from -1 to 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.elites <= self.samples or self.iterations < 1 or not self.floor > 0.0:
            raise ThespisError(
                "the search needs at least 1 iteration, 1 elite, as many samples as elites, and a floor above 0; "
                "change --network.cem.*"
            )


@dataclass(frozen=True)
class ScoredNetworkConfig(NetworkConfig):
    """The network of Q(x, a), and how the best action is found with it."""

    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of the mlp; the first reads the observation, the others its features and the action."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the mlp."""
    cem: CEMConfig = field(default_factory=CEMConfig)


@dataclass(frozen=True)
class ReplayConfig:
    """How steps are kept and how often each is learned from."""

    capacity: int = 100_000
    """Steps to keep; the oldest are overwritten."""
    bytes: int = 0
    """Most memory for them, in bytes: fewer steps are kept if need be; 0 for as much as the capacity takes."""
    warm_up: int = 1_000
    """Transitions to collect before the first is sampled."""
    samples_per_insert: float = 8.0
    """How often each transition is sampled, on average; actors and learner wait for each other to keep to it."""
    error: float = 0.0
    """Samples by which that may be off at any time; 0 for the least that lets everybody go on, twice over."""
    priority_exponent: float = 0.0
    """How much the last TD error decides what is sampled; 0 samples evenly."""
    actor_priorities: bool = False
    """A new transition's priority is the TD error its actor saw; else it is the highest so far."""
    importance_exponent: float = 0.4
    """How much of the bias of uneven sampling is undone by importance weights."""
    sampler: Literal["random", "fifo"] = "random"
    """random (evenly, or by priority if there is an exponent), or fifo (the oldest first)."""
    max_times_sampled: int = 0
    """Draws after which a transition is removed; 0 keeps it until it is overwritten."""
    shards: int = 1
    """Replays that share all this, each in its own process: an actor inserts into one, batches come from all."""

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.max_times_sampled <= 65_535:
            raise ThespisError("--replay.shards is at least 1, and --replay.max-times-sampled from 0 to 65535")
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

    kind: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adam"
    """adam, rmsprop (epsilon inside the root, as in the papers), adagrad or sgd."""
    learning_rate: float = 1e-3
    """Step size at the start."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    epsilon: float = 1e-8
    """The optimiser's epsilon; sgd has none."""
    decay: float = 0.99
    """rmsprop: decay of the mean square."""
    momentum: float = 0.0
    """rmsprop: momentum."""
    beta2: float = 0.999
    """adam: decay of the mean square. A lower one keeps a surprise after a quiet time from becoming a leap."""
    clip: float = 40.0
    """Largest global norm of the gradients; 0 does not clip."""


@dataclass(frozen=True)
class Experiment:
    """What every architecture can be told."""

    env: Spec = "CartPole-v1"
    """Gymnasium id, verbatim (CartPole-v1, ALE/Pong-v5, module:EnvId-v0), or file.py::function that makes one."""
    on: Literal["local", "simulation", "ray"] = "local"
    """Runtime: local (one process per role), simulation (one process, virtual time, deterministic), or ray."""
    seed: int = 0
    """Everything random in the run follows from it."""
    total_steps: int | None = 1_000_000
    """Stop after this many environment steps of all actors together (frame-skip not multiplied); None sets no limit."""
    total_seconds: float | None = None
    """Stop this many seconds after the first environment step; in the simulation they are virtual. Without
    --total-steps beside it there is no limit of steps, and learning rates anneal over these seconds."""
    stop_at_return: float | None = None
    """Stop when the mean of the last 100 training episodes reaches this."""
    actors: int = field(default_factory=lambda: min(max(1, (os.cpu_count() or 2) - 1), 8))
    """How many actors step environments; by default one per core that the learner leaves, 8 at most."""
    envs_per_actor: int = 32
    """Environments each actor steps side by side."""
    run_dir: Path | None = None
    """Where to write; runs/<architecture>-<env>-s<seed>-<n> if not given."""
    report_every: float = 1.0
    """Seconds between rows of metrics."""
    eval_every: float = 30.0
    """Seconds between evaluations; 0 evaluates only at the end."""
    eval_episodes: int = 10
    """Greedy episodes per evaluation; 0 switches the evaluator off."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints; there is always one at the end."""
    keep: int = 2
    """Checkpoints to keep beside the best one."""
    env_timeout: float = 60.0
    """Seconds an environment may take for one step before its actor is killed and replaced."""
    stall_timeout: float = 60.0
    """Seconds without an update after which the run says who waits for whom, and ends."""
    ray_address: str | None = None
    """ray: the cluster to join, `auto` or HOST:PORT; without it a Ray of this machine alone is started for the run."""
    actors_per_node: int | None = None
    """ray: exactly this many actors on each node; by default they are spread as the cluster has room."""
    placement_timeout: float = 60.0
    """ray: seconds a role may wait for a place in the cluster before the run says what is missing."""
    cost_model: Path | None = None
    """simulation: YAML file with the cost of work and edges (docs/simulation.md)."""
    faults: tuple[str, ...] = ()
    """simulation: e.g. "kill actor 0 at 2.5", "slow actor 1 by 10", "lose actor.queue.insert at 2"."""

    def __post_init__(self) -> None:
        for name, least in (("total_steps", 1), ("actors", 1), ("envs_per_actor", 1), ("seed", 0), ("keep", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise ThespisError(f"--{flag} is {getattr(self, name)}; give at least {least}")
        if self.total_steps is None and self.total_seconds is None:
            raise ThespisError("nothing says when the run is over: give --total-steps, --total-seconds, or both")
        for name in ("report_every", "checkpoint_every", "env_timeout", "stall_timeout", "placement_timeout"):
            if not getattr(self, name) > 0:
                raise ThespisError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give more than 0 seconds")
        if self.total_seconds is not None and not self.total_seconds > 0:
            raise ThespisError(f"--total-seconds is {self.total_seconds}; give more than 0 seconds")
        if self.eval_every < 0 or self.eval_episodes < 0:
            raise ThespisError("--eval-every and --eval-episodes cannot be negative")
        if self.on != "simulation" and (self.faults or self.cost_model):
            raise ThespisError("--faults and --cost-model belong to the simulation; add --on simulation")
        if self.on != "ray" and (self.ray_address or self.actors_per_node):
            raise ThespisError("--ray-address and --actors-per-node belong to Ray; add --on ray")
        if self.actors_per_node is not None and self.actors_per_node < 1:
            raise ThespisError(f"--actors-per-node is {self.actors_per_node}; give at least 1")

    @property
    def budget(self) -> Budget:
        return Budget(self.total_steps, self.total_seconds)

    @property
    def env_name(self) -> str:
        return self.env if isinstance(self.env, str) else locate(self.env)


def locate(function: Callable[..., Any]) -> str:
    """Where to find a function: `module::name`, or `file.py::name` if it stands in the script that runs."""
    module = sys.modules.get(function.__module__)
    if function.__module__ == "__main__" and getattr(module, "__file__", None):
        return f"{module.__file__}::{function.__qualname__}"  # type: ignore[union-attr]
    return f"{function.__module__}::{function.__qualname__}"


def resolve(spec: Spec) -> Any:
    """The function behind `module::name` or `file.py::name`; any other text and any function is returned as it is."""
    if not isinstance(spec, str) or "::" not in spec:
        return spec
    source, _, name = spec.partition("::")
    try:
        found: Any = load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ThespisError(f"{spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def load_file(path: Path) -> types.ModuleType:
    """A Python file as a module. What it defines is sent to other processes by value: they could not import it."""
    import cloudpickle

    name = f"thespis_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        plan = importlib.util.spec_from_file_location(name, path)
        if plan is None or plan.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        module = importlib.util.module_from_spec(plan)
        sys.modules[name] = module
        try:
            plan.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        cloudpickle.register_pickle_by_value(module)
    return sys.modules[name]
