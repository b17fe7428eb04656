"""Written by `python -m thespis.training.typing_stub`; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack, overload

from thespis.algorithms.base import Algorithm
from thespis.algorithms.es import ARSConfig, StepConfig
from thespis.core.config import NetworkConfig, OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig
from thespis.networks.configs import CEMConfig, DPGNetworkConfig, EvolvedNetworkConfig, ScoredNetworkConfig
from thespis.training.run import Trained

_Spec = str | Callable[..., Any]


class ExperimentSettings(TypedDict, total=False):
    env: _Spec
    on: Literal["local", "simulation", "ray"]
    seed: int
    total_steps: int | None
    total_seconds: float | None
    stop_at_return: float | None
    actors: int
    envs_per_actor: int
    run_dir: str | Path | None
    report_every: float
    track_info: list[str] | tuple[str, ...]
    eval_every: float
    eval_episodes: int
    eval_max_steps: int
    checkpoint_every: float
    save_every: int | None
    keep: int
    env_kwargs: Mapping[str, Any]
    wrapper: list[_Spec] | tuple[_Spec, ...]
    frame_stack: int | None
    time_limit: int | None
    env_timeout: float
    stall_timeout: float
    callback: list[str] | tuple[str, ...]
    ray_address: str | None
    actors_per_node: int | None
    placement_timeout: float
    cost_model: str | Path | None
    faults: list[str] | tuple[str, ...]
    init_from: str | Path | None
    init_checkpoint: Literal["newest", "best"]
    init_only: list[str] | tuple[str, ...]


class NetworkSettings(TypedDict, total=False):
    torso: Literal["auto", "mlp", "nature", "resnet"]
    hidden: list[int] | tuple[int, ...]
    activation: Literal["tanh", "relu"]
    lstm: int
    factory: _Spec
    normalize_observations: bool


class OptimizerSettings(TypedDict, total=False):
    kind: Literal["adam", "rmsprop", "adagrad", "sgd"]
    learning_rate: float
    anneal: bool
    epsilon: float
    decay: float
    momentum: float
    beta2: float
    clip: float


class RewardSettings(TypedDict, total=False):
    kind: Literal["none", "sign", "abs_one", "scale"]
    scale: float
    normalize: bool


class APPOSettings(TypedDict, total=False):
    unroll_length: int
    network: NetworkSettings | NetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    clip: float
    entropy_cost: float
    value_cost: float
    rho_bar: float
    c_bar: float
    trace_decay: float
    normalize_advantages: bool
    reward: RewardSettings | RewardConfig


class ReplaySettings(TypedDict, total=False):
    capacity: int
    bytes: int
    warm_up: int
    samples_per_insert: float
    error: float
    priority_exponent: float
    actor_priorities: bool
    importance_exponent: float
    sampler: Literal["random", "fifo"]
    max_times_sampled: int
    shards: int


class DPGNetworkSettings(TypedDict, total=False):
    torso: Literal["auto", "mlp", "nature", "resnet"]
    hidden: list[int] | tuple[int, ...]
    activation: Literal["tanh", "relu"]
    lstm: int
    factory: _Spec
    normalize_observations: bool
    critic_hidden: list[int] | tuple[int, ...]


class DPGSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: DPGNetworkSettings | DPGNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    target_period: int
    slope_clip: float
    noise: float
    least_noise: float
    reward: RewardSettings | RewardConfig


class QNetworkSettings(TypedDict, total=False):
    torso: Literal["auto", "mlp", "nature", "resnet"]
    hidden: list[int] | tuple[int, ...]
    activation: Literal["tanh", "relu"]
    lstm: int
    factory: _Spec
    normalize_observations: bool
    dueling: bool
    feedback: bool


class DQNSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: QNetworkSettings | QNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    double: bool
    huber: float
    target_period: int
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int
    reward: RewardSettings | RewardConfig


class EvolvedNetworkSettings(TypedDict, total=False):
    torso: Literal["auto", "mlp", "nature", "resnet"]
    hidden: list[int] | tuple[int, ...]
    activation: Literal["tanh", "relu"]
    lstm: int
    factory: _Spec
    normalize_observations: bool
    virtual_batch_norm: bool


class StepSettings(TypedDict, total=False):
    kind: Literal["adam", "sgd"]
    learning_rate: float
    weight_decay: float
    anneal: bool
    epsilon: float


class ARSSettings(TypedDict, total=False):
    pairs: int
    top: int
    noise: float
    step_size: float
    survival_bonus: float


class ESSettings(TypedDict, total=False):
    cap_factor: float
    longest_episode: int
    network: EvolvedNetworkSettings | EvolvedNetworkConfig
    optimizer: StepSettings | StepConfig
    variant: Literal["es", "ars"]
    pairs: int
    noise: float
    ars: ARSSettings | ARSConfig


class PPOSettings(TypedDict, total=False):
    unroll_length: int
    network: NetworkSettings | NetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    epochs: int
    minibatches: int
    clip: float
    value_clip: float
    target_kl: float | None
    gae_lambda: float
    entropy_cost: float
    value_cost: float
    reward: RewardSettings | RewardConfig


class CEMSettings(TypedDict, total=False):
    samples: int
    iterations: int
    elites: int
    floor: float


class ScoredNetworkSettings(TypedDict, total=False):
    torso: Literal["auto", "mlp", "nature", "resnet"]
    hidden: list[int] | tuple[int, ...]
    activation: Literal["tanh", "relu"]
    lstm: int
    factory: _Spec
    normalize_observations: bool
    cem: CEMSettings | CEMConfig


class QTOptSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: ScoredNetworkSettings | ScoredNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    noise: float
    loss: Literal["squared", "cross-entropy"]
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int
    reward: RewardSettings | RewardConfig


class R2D2Settings(TypedDict, total=False):
    unroll_length: int
    sequence_length: int
    burn_in: int
    state: Literal["stored", "zero"]
    eta: float
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: QNetworkSettings | QNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    double: bool
    huber: float
    target_period: int
    epsilon: float
    epsilon_exponent: float
    reward: RewardSettings | RewardConfig


class SACSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: DPGNetworkSettings | DPGNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    tau: float
    critics: int
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    reward: RewardSettings | RewardConfig


class TRPOSettings(TypedDict, total=False):
    unroll_length: int
    network: NetworkSettings | NetworkConfig
    discount: float
    gae_lambda: float
    max_kl: float
    damping: float
    cg_iterations: int
    line_search_steps: int
    backtrack: float
    value_epochs: int
    minibatches: int
    value_learning_rate: float
    reward: RewardSettings | RewardConfig


class VTraceSettings(TypedDict, total=False):
    unroll_length: int
    network: NetworkSettings | NetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    entropy_cost: float
    value_cost: float
    reduction: Literal["mean", "sum"]
    correction: bool
    rho_bar: float
    c_bar: float
    pg_rho_bar: float
    trace_decay: float
    reward: RewardSettings | RewardConfig


class A2cOwn(ExperimentSettings, total=False):
    shards: int
    gradient_dtype: Literal["float32", "float16", "bfloat16"]
    backups: int


class A2cVTraceArguments(A2cOwn, VTraceSettings, total=False):
    algorithm: Literal["a2c", "vtrace"]


class A2cAPPOArguments(A2cOwn, APPOSettings, total=False):
    algorithm: Required[Literal["appo"]]


class A3cOwn(ExperimentSettings, total=False):
    shards: int
    gradient_dtype: Literal["float32", "float16", "bfloat16"]
    end_with_episode: bool
    hogwild: bool


class A3cVTraceArguments(A3cOwn, VTraceSettings, total=False):
    algorithm: Literal["a2c", "vtrace"]


class A3cAPPOArguments(A3cOwn, APPOSettings, total=False):
    algorithm: Required[Literal["appo"]]


class ApexOwn(ExperimentSettings, total=False):
    publish_every: int


class ApexDQNSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig
    network: QNetworkSettings | QNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    double: bool
    huber: float
    target_period: int
    epsilon: float
    epsilon_exponent: float
    reward: RewardSettings | RewardConfig


class ApexDQNArguments(ApexOwn, ApexDQNSettings, total=False):
    algorithm: Literal["dqn"]


class ApexDPGArguments(ApexOwn, DPGSettings, total=False):
    algorithm: Required[Literal["dpg"]]


class ApexR2D2Arguments(ApexOwn, R2D2Settings, total=False):
    algorithm: Required[Literal["r2d2"]]


class ApexSACArguments(ApexOwn, SACSettings, total=False):
    algorithm: Required[Literal["sac"]]


class DqnOwn(ExperimentSettings, total=False):
    publish_every: int


class DqnDQNArguments(DqnOwn, DQNSettings, total=False):
    algorithm: Literal["dqn"]


class DqnDPGArguments(DqnOwn, DPGSettings, total=False):
    algorithm: Required[Literal["dpg"]]


class DqnSACArguments(DqnOwn, SACSettings, total=False):
    algorithm: Required[Literal["sac"]]


class EsOwn(ExperimentSettings, total=False):
    protocol: Literal["broadcast", "seeds"]
    noise_table: int
    check_every: int
    repeat_after: float


class EsESArguments(EsOwn, ESSettings, total=False):
    algorithm: Literal["es"]


class GorilaOwn(ExperimentSettings, total=False):
    replay_mode: Literal["bundled", "global"]
    learners: int | None
    shards: int
    gradient_dtype: Literal["float32", "float16", "bfloat16"]
    max_delay: int | None
    outlier_deviations: float | None
    outlier_memory: int


class GorilaDQNArguments(GorilaOwn, DQNSettings, total=False):
    algorithm: Literal["dqn"]


class GorilaDPGArguments(GorilaOwn, DPGSettings, total=False):
    algorithm: Required[Literal["dpg"]]


class GorilaSACArguments(GorilaOwn, SACSettings, total=False):
    algorithm: Required[Literal["sac"]]


class ImpalaOwn(ExperimentSettings, total=False):
    batch_unrolls: int
    queue_capacity: int
    forced_lag: int


class ImpalaVTraceArguments(ImpalaOwn, VTraceSettings, total=False):
    algorithm: Literal["vtrace", "a2c"]


class ImpalaAPPOArguments(ImpalaOwn, APPOSettings, total=False):
    algorithm: Required[Literal["appo"]]


class ParameterServerOwn(ExperimentSettings, total=False):
    shards: int
    gradient_dtype: Literal["float32", "float16", "bfloat16"]
    mode: Literal["async", "sync", "stale", "softsync"]
    backups: int
    average: int
    max_staleness: int
    when_stale: Literal["refuse", "wait"]
    staleness_aware: bool


class ParameterServerVTraceArguments(ParameterServerOwn, VTraceSettings, total=False):
    algorithm: Literal["a2c", "vtrace"]


class ParameterServerAPPOArguments(ParameterServerOwn, APPOSettings, total=False):
    algorithm: Required[Literal["appo"]]


class ParameterServerDPGArguments(ParameterServerOwn, DPGSettings, total=False):
    algorithm: Required[Literal["dpg"]]


class ParameterServerDQNArguments(ParameterServerOwn, DQNSettings, total=False):
    algorithm: Required[Literal["dqn"]]


class ParameterServerSACArguments(ParameterServerOwn, SACSettings, total=False):
    algorithm: Required[Literal["sac"]]


class PbtOwn(ExperimentSettings, total=False):
    member: str
    population: int
    tune: list[str] | tuple[str, ...]
    settings: list[str] | tuple[str, ...]
    slots: int | None
    member_on: Literal["simulation", "local", "ray"]
    interval: int
    synchronous: bool
    exploit: Literal["truncation", "tournament"]
    share: float
    factor: float
    resample: float


class PpoOwn(ExperimentSettings, total=False):
    backups: int


class PpoPPOArguments(PpoOwn, PPOSettings, total=False):
    algorithm: Literal["ppo"]


class PpoTRPOArguments(PpoOwn, TRPOSettings, total=False):
    algorithm: Required[Literal["trpo"]]


class QtoptOwn(ExperimentSettings, total=False):
    updaters: int
    trainers: int
    shards: int
    decay: float
    lag: int
    pull_every: int
    buffer: int
    demos: _Spec
    demo_episodes: int
    offline_updates: int
    online_share: float


class QtoptQTOptArguments(QtoptOwn, QTOptSettings, total=False):
    algorithm: Literal["qtopt"]


class R2d3Own(ExperimentSettings, total=False):
    publish_every: int
    demos: _Spec
    demo_episodes: int
    demo_ratio: float


class R2d3R2D2Arguments(R2d3Own, R2D2Settings, total=False):
    algorithm: Literal["r2d2"]


class SeedOwn(ExperimentSettings, total=False):
    inference_batch: int
    inference_wait: float
    double_buffer: bool
    transport: Literal["runtime", "grpc"]
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_ca: str | Path | None
    tls_name: str
    batch_unrolls: int
    queue_capacity: int
    forced_lag: int
    publish_every: int


class SeedVTraceArguments(SeedOwn, VTraceSettings, total=False):
    algorithm: Literal["vtrace", "a2c"]


class SeedAPPOArguments(SeedOwn, APPOSettings, total=False):
    algorithm: Required[Literal["appo"]]


class SeedPPOArguments(SeedOwn, PPOSettings, total=False):
    algorithm: Required[Literal["ppo"]]


class SeedR2D2Arguments(SeedOwn, R2D2Settings, total=False):
    algorithm: Required[Literal["r2d2"]]


class SeedTRPOArguments(SeedOwn, TRPOSettings, total=False):
    algorithm: Required[Literal["trpo"]]


class ApexDpgDPGArguments(ApexOwn, DPGSettings, total=False):
    algorithm: Literal["dpg"]


class AppoAPPOArguments(ImpalaOwn, APPOSettings, total=False):
    algorithm: Literal["appo"]


class R2d2R2D2Arguments(ApexOwn, R2D2Settings, total=False):
    algorithm: Literal["r2d2"]


class SacSACArguments(DqnOwn, SACSettings, total=False):
    algorithm: Literal["sac"]


class TrpoTRPOArguments(PpoOwn, TRPOSettings, total=False):
    algorithm: Literal["trpo"]


@overload
def train(architecture: Literal["a2c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[A2cVTraceArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["a2c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[A2cAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["a3c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[A3cVTraceArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["a3c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[A3cAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ApexDQNArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ApexDPGArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ApexR2D2Arguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ApexSACArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[DqnDQNArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[DqnDPGArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[DqnSACArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["es"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[EsESArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[GorilaDQNArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[GorilaDPGArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[GorilaSACArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["impala"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ImpalaVTraceArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["impala"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ImpalaAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ParameterServerVTraceArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ParameterServerAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ParameterServerDPGArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ParameterServerDQNArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ParameterServerSACArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["pbt"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[PbtOwn]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["ppo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[PpoPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["ppo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[PpoTRPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["qtopt"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[QtoptQTOptArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["r2d3"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[R2d3R2D2Arguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SeedVTraceArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SeedAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SeedPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SeedR2D2Arguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SeedTRPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["apex-dpg"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ApexDpgDPGArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["appo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[AppoAPPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["r2d2"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[R2d2R2D2Arguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["sac"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[SacSACArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["trpo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[TrpoTRPOArguments]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Literal["a2c", "a3c", "apex", "apex-dpg", "appo", "dqn", "es", "gorila", "impala", "parameter-server", "ppo", "qtopt", "r2d2", "r2d3", "sac", "seed", "trpo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Algorithm[Any] | type[Algorithm[Any]], **settings: Any) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: str, *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ExperimentSettings]) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""


@overload
def train(architecture: Path, *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Any) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts."""
