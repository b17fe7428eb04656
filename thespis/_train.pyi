"""Written by `python -m thespis.training.typing_stub`; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from thespis.algorithms.base import Algorithm
from thespis.algorithms.es import ARSConfig, StepConfig
from thespis.core.config import NetworkConfig, OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig
from thespis.networks.configs import CEMConfig, DPGNetworkConfig, ESNetworkConfig, QFunctionConfig
from thespis.training.trained_run import TrainedRun

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


class A2cOwn(ExperimentSettings, total=False):
    backups: int


class ServersSettings(TypedDict, total=False):
    shards: int
    workers_per_node: int | None
    worker_timeout: float


class CompressionSettings(TypedDict, total=False):
    gradients: Literal["float32", "float16", "bfloat16", "int8", "topk", "sign", "powersgd"]
    gradients_share: float
    gradients_warm_up: int
    gradients_rank: int
    gradients_feedback: bool


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


class VTraceSettings(TypedDict, total=False):
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


class UnrollsSettings(TypedDict, total=False):
    unroll_length: int


class A2cVTrace(A2cOwn, ServersSettings, CompressionSettings, VTraceSettings, UnrollsSettings, total=False): ...


class APPOSettings(TypedDict, total=False):
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


class A2cAPPO(A2cOwn, ServersSettings, CompressionSettings, APPOSettings, UnrollsSettings, total=False): ...


class A3cOwn(ExperimentSettings, total=False):
    end_with_episode: bool
    hogwild: bool


class A3cVTrace(A3cOwn, ServersSettings, CompressionSettings, VTraceSettings, UnrollsSettings, total=False): ...


class A3cAPPO(A3cOwn, ServersSettings, CompressionSettings, APPOSettings, UnrollsSettings, total=False): ...


class LearnersSettings(TypedDict, total=False):
    learners: int
    learners_per_node: int | None
    all_reduce: Literal["group", "gloo"]
    learner_timeout: float


class OwnReplaysSettings(LearnersSettings, CompressionSettings, total=False):
    publish_every: int


class WeightsSettings(TypedDict, total=False):
    weights: Literal["float32", "bfloat16", "delta"]


class QNetworkSettings(NetworkSettings, total=False):
    dueling: bool
    feedback: bool


class DiscreteQSettings(TypedDict, total=False):
    double: bool
    target_period: int


class DQNSettings(DiscreteQSettings, total=False):
    network: QNetworkSettings | QNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    huber: float
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


class TransitionsSettings(TypedDict, total=False):
    unroll_length: int
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig


class EpsilonLadderSettings(TypedDict, total=False):
    epsilon: float
    epsilon_exponent: float


class ApexDQN(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, DQNSettings, TransitionsSettings, EpsilonLadderSettings, total=False): ...


class DPGNetworkSettings(NetworkSettings, total=False):
    critic_hidden: list[int] | tuple[int, ...]


class DPGSettings(TypedDict, total=False):
    network: DPGNetworkSettings | DPGNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    target_period: int
    slope_clip: float
    reward: RewardSettings | RewardConfig


class NoiseLadderSettings(TypedDict, total=False):
    noise: float
    least_noise: float


class ApexDPG(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, DPGSettings, TransitionsSettings, NoiseLadderSettings, total=False): ...


class R2D2Settings(DiscreteQSettings, total=False):
    network: QNetworkSettings | QNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    huber: float
    reward: RewardSettings | RewardConfig


class SequencesSettings(TypedDict, total=False):
    unroll_length: int
    sequence_length: int
    burn_in: int
    state: Literal["stored", "zero"]
    eta: float
    n_step: int
    batch: int
    batches_per_draw: int
    replay: ReplaySettings | ReplayConfig


class ApexR2D2(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, R2D2Settings, SequencesSettings, EpsilonLadderSettings, total=False): ...


class SACSettings(TypedDict, total=False):
    network: DPGNetworkSettings | DPGNetworkConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    tau: float
    critics: int
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    reward: RewardSettings | RewardConfig


class ApexSAC(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, SACSettings, TransitionsSettings, total=False): ...


class EpsilonScheduleSettings(TypedDict, total=False):
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int


class DqnDQN(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, DQNSettings, TransitionsSettings, EpsilonScheduleSettings, total=False): ...


class DqnDPG(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, DPGSettings, TransitionsSettings, NoiseLadderSettings, total=False): ...


class DqnSAC(ExperimentSettings, OwnReplaysSettings, CompressionSettings, WeightsSettings, SACSettings, TransitionsSettings, total=False): ...


class EsOwn(ExperimentSettings, total=False):
    protocol: Literal["broadcast", "seeds"]
    noise_table: int
    check_every: int
    repeat_after: float


class ESNetworkSettings(NetworkSettings, total=False):
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
    network: ESNetworkSettings | ESNetworkConfig
    optimizer: StepSettings | StepConfig
    variant: Literal["es", "ars"]
    pairs: int
    noise: float
    ars: ARSSettings | ARSConfig


class EpisodesSettings(TypedDict, total=False):
    cap_factor: float
    longest_episode: int


class EsES(EsOwn, ESSettings, EpisodesSettings, total=False): ...


class GorilaOwn(ExperimentSettings, total=False):
    replay_mode: Literal["bundled", "global"]
    learners: int | None
    max_delay: int | None
    outlier_deviations: float | None
    outlier_memory: int


class GorilaDQN(GorilaOwn, ServersSettings, CompressionSettings, DQNSettings, TransitionsSettings, EpsilonScheduleSettings, total=False): ...


class GorilaDPG(GorilaOwn, ServersSettings, CompressionSettings, DPGSettings, TransitionsSettings, NoiseLadderSettings, total=False): ...


class GorilaSAC(GorilaOwn, ServersSettings, CompressionSettings, SACSettings, TransitionsSettings, total=False): ...


class QueueSettings(TypedDict, total=False):
    batch_unrolls: int
    queue_capacity: int
    forced_lag: int


class ParallelSettings(TypedDict, total=False):
    parallel: str


class PreemptionSettings(TypedDict, total=False):
    preempt: float


class ImpalaVTrace(ExperimentSettings, QueueSettings, WeightsSettings, LearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, VTraceSettings, UnrollsSettings, total=False): ...


class ImpalaAPPO(ExperimentSettings, QueueSettings, WeightsSettings, LearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, APPOSettings, UnrollsSettings, total=False): ...


class ParameterServerOwn(ExperimentSettings, total=False):
    mode: Literal["async", "sync", "stale", "softsync"]
    backups: int
    average: int
    max_staleness: int
    when_stale: Literal["refuse", "wait"]
    staleness_aware: bool


class ParameterServerVTrace(ParameterServerOwn, ServersSettings, CompressionSettings, VTraceSettings, UnrollsSettings, total=False): ...


class ParameterServerAPPO(ParameterServerOwn, ServersSettings, CompressionSettings, APPOSettings, UnrollsSettings, total=False): ...


class ParameterServerDPG(ParameterServerOwn, ServersSettings, CompressionSettings, DPGSettings, TransitionsSettings, NoiseLadderSettings, total=False): ...


class ParameterServerDQN(ParameterServerOwn, ServersSettings, CompressionSettings, DQNSettings, TransitionsSettings, EpsilonScheduleSettings, total=False): ...


class ParameterServerSAC(ParameterServerOwn, ServersSettings, CompressionSettings, SACSettings, TransitionsSettings, total=False): ...


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


class PPOSettings(TypedDict, total=False):
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


class RoundsSettings(TypedDict, total=False):
    unroll_length: int


class PpoPPO(PpoOwn, LearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, WeightsSettings, PPOSettings, RoundsSettings, total=False): ...


class TRPOSettings(TypedDict, total=False):
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


class PpoTRPO(PpoOwn, LearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, WeightsSettings, TRPOSettings, RoundsSettings, total=False): ...


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


class CEMSettings(TypedDict, total=False):
    samples: int
    iterations: int
    elites: int
    floor: float


class QFunctionSettings(NetworkSettings, total=False):
    cem: CEMSettings | CEMConfig


class QTOptSettings(TypedDict, total=False):
    network: QFunctionSettings | QFunctionConfig
    optimizer: OptimizerSettings | OptimizerConfig
    discount: float
    noise: float
    loss: Literal["squared", "cross-entropy"]
    reward: RewardSettings | RewardConfig


class QtoptQTOpt(QtoptOwn, QTOptSettings, TransitionsSettings, EpsilonScheduleSettings, total=False): ...


class R2d3Own(ExperimentSettings, total=False):
    demos: _Spec
    demo_episodes: int
    demo_ratio: float


class R2d3R2D2(R2d3Own, OwnReplaysSettings, CompressionSettings, WeightsSettings, R2D2Settings, SequencesSettings, EpsilonLadderSettings, total=False): ...


class SeedOwn(ExperimentSettings, total=False):
    publish_every: int


class InferenceSettings(TypedDict, total=False):
    inference_batch: int
    inference_wait: float
    double_buffer: bool
    transport: Literal["runtime", "grpc"]
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_ca: str | Path | None
    tls_name: str


class ReplayLearnersSettings(LearnersSettings, CompressionSettings, total=False): ...


class SeedVTrace(SeedOwn, InferenceSettings, ReplayLearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, QueueSettings, VTraceSettings, UnrollsSettings, total=False): ...


class SeedAPPO(SeedOwn, InferenceSettings, ReplayLearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, QueueSettings, APPOSettings, UnrollsSettings, total=False): ...


class SeedPPO(SeedOwn, InferenceSettings, ReplayLearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, QueueSettings, PPOSettings, RoundsSettings, total=False): ...


class SeedR2D2(SeedOwn, InferenceSettings, ReplayLearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, QueueSettings, R2D2Settings, SequencesSettings, EpsilonLadderSettings, total=False): ...


class SeedTRPO(SeedOwn, InferenceSettings, ReplayLearnersSettings, CompressionSettings, ParallelSettings, PreemptionSettings, QueueSettings, TRPOSettings, RoundsSettings, total=False): ...


@overload
def train(architecture: Literal["a2c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["a2c", "vtrace"] = ..., **settings: Unpack[A2cVTrace]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["a2c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"], **settings: Unpack[A2cAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["a3c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["a2c", "vtrace"] = ..., **settings: Unpack[A3cVTrace]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["a3c"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"], **settings: Unpack[A3cAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dqn"] = ..., **settings: Unpack[ApexDQN]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dpg"], **settings: Unpack[ApexDPG]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["r2d2"], **settings: Unpack[ApexR2D2]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["apex"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["sac"], **settings: Unpack[ApexSAC]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dqn"] = ..., **settings: Unpack[DqnDQN]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dpg"], **settings: Unpack[DqnDPG]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["dqn"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["sac"], **settings: Unpack[DqnSAC]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["es"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["es"] = ..., **settings: Unpack[EsES]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dqn"] = ..., **settings: Unpack[GorilaDQN]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dpg"], **settings: Unpack[GorilaDPG]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["gorila"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["sac"], **settings: Unpack[GorilaSAC]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["impala"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["vtrace", "a2c"] = ..., **settings: Unpack[ImpalaVTrace]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["impala"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"], **settings: Unpack[ImpalaAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["a2c", "vtrace"] = ..., **settings: Unpack[ParameterServerVTrace]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"], **settings: Unpack[ParameterServerAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dpg"], **settings: Unpack[ParameterServerDPG]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dqn"], **settings: Unpack[ParameterServerDQN]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["parameter-server"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["sac"], **settings: Unpack[ParameterServerSAC]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["pbt"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[PbtOwn]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["ppo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["ppo"] = ..., **settings: Unpack[PpoPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["ppo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["trpo"], **settings: Unpack[PpoTRPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["qtopt"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["qtopt"] = ..., **settings: Unpack[QtoptQTOpt]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["r2d3"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["r2d2"] = ..., **settings: Unpack[R2d3R2D2]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["vtrace", "a2c"] = ..., **settings: Unpack[SeedVTrace]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"], **settings: Unpack[SeedAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["ppo"], **settings: Unpack[SeedPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["r2d2"], **settings: Unpack[SeedR2D2]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["seed"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["trpo"], **settings: Unpack[SeedTRPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["apex-dpg"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["dpg"] = ..., **settings: Unpack[ApexDPG]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["appo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["appo"] = ..., **settings: Unpack[ImpalaAPPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["r2d2"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["r2d2"] = ..., **settings: Unpack[ApexR2D2]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["sac"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["sac"] = ..., **settings: Unpack[DqnSAC]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["trpo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Literal["trpo"] = ..., **settings: Unpack[PpoTRPO]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Literal["a2c", "a3c", "apex", "apex-dpg", "appo", "dqn", "es", "gorila", "impala", "parameter-server", "ppo", "qtopt", "r2d2", "r2d3", "sac", "seed", "trpo"], *, callbacks: Sequence[Any] = ..., quiet: bool = ..., algorithm: Algorithm[Any] | type[Algorithm[Any]], **settings: Any) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: str, *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Unpack[ExperimentSettings]) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""


@overload
def train(architecture: Path, *, callbacks: Sequence[Any] = ..., quiet: bool = ..., **settings: Any) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts."""
