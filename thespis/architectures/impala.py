"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace repairs the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from thespis import roles
from thespis.architectures.evaluating import add_evaluator
from thespis.config import Experiment, NetworkConfig, OptimizerConfig, RewardConfig
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(Experiment):
    """IMPALA. The defaults solve small control tasks in seconds; Atari ids take the paper's table G.1 instead."""

    unroll_length: int = 16
    """Steps per unroll (paper: 20 on Atari, 100 on DMLab)."""
    batch_unrolls: int = 1
    """Unrolls per update; each holds all environments of one actor (paper: 32 unrolls of one environment)."""
    queue_capacity: int = 1
    """Unrolls that may wait for the learner; small, because waiting is lag."""
    discount: float = 0.99
    """Discount factor (paper)."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus (paper, Atari)."""
    value_cost: float = 0.5
    """Weight of the value loss (paper)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the losses over the batch (paper: sum; learning rate and costs go with it)."""
    rho_bar: float = 1.0
    """Clip of the importance weights in the temporal differences: decides which policy is evaluated."""
    c_bar: float = 1.0
    """Clip of the trace weights: decides how far corrections reach back."""
    pg_rho_bar: float = 1.0
    """Clip of the importance weights of the policy gradient."""
    trace_decay: float = 1.0
    """Lambda of V-trace: extra decay of the traces (paper: 1)."""
    correction: bool = True
    """Off trains as if the data were on-policy, to see what V-trace is for."""
    forced_lag: int = 0
    """Give actors weights that are this many updates old, to study lag."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("unroll_length", "batch_unrolls"):
            if getattr(self, name) < 1:
                raise ThespisError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1")


PRESETS: dict[str, dict[str, Any]] = {
    # The learning rate anneals over the steps, a third more than it takes. Once it is solved, gradients are small until
    # an episode fails: Adam as it usually is then leaps, sometimes to where no gradient leads back.
    "CartPole-v1": {
        "total_steps": 400_000,
        "envs_per_actor": 48,
        "optimizer": {"learning_rate": 5e-3, "anneal": True, "clip": 0.5, "epsilon": 3e-3, "beta2": 0.99},
    },
    "thespis/Memory-v0": {  # unrolls of two episodes, so that cue and question are in one
        "total_steps": 300_000,
        "envs_per_actor": 16,
        "unroll_length": 20,
        "reward": {"kind": "none"},
        "optimizer": {"learning_rate": 3e-3, "clip": 40.0},
    },
    "Pendulum-v1": {  # a short horizon and normalised rewards; small batches, because it takes many updates
        "total_steps": 600_000,
        "envs_per_actor": 8,
        "unroll_length": 20,
        "discount": 0.9,
        "entropy_cost": 0.0,
        "trace_decay": 0.95,
        "reward": {"kind": "none", "normalize": True},
        "optimizer": {"learning_rate": 1e-3, "anneal": False, "clip": 40.0},
    },
    "ALE/*": {  # the paper's table G.1; losses are summed over the batch there
        "total_steps": 50_000_000,
        "envs_per_actor": 16,
        "unroll_length": 20,
        "batch_unrolls": 2,
        "queue_capacity": 2,
        "reduction": "sum",
        "reward": {"kind": "abs_one"},
        "optimizer": {"kind": "rmsprop", "learning_rate": 6e-4, "epsilon": 0.01, "clip": 40.0, "anneal": True},
        "checkpoint_every": 300.0,
        "eval_every": 600.0,
    },
}


def build_actor(ctx: Context, cfg: Config, insert: Any, pull: Any) -> roles.Actor:
    from thespis.architectures.parts import environments, local_policy

    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return_discount = cfg.discount if cfg.reward.normalize else None
    return roles.Actor(ctx, envs, local_policy(ctx, cfg, pull, ahead=True), insert, cfg.unroll_length, return_discount)


def build_learner(ctx: Context, cfg: Config, sample: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.actor_critic import VTraceUpdate
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Batches

    update = VTraceUpdate(learner_network(ctx, cfg), cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    return roles.Learner(ctx, Batches(ctx, sample, cfg.batch_unrolls), update, exchange, publish, cfg.budget)


def program(cfg: Config) -> Program:
    p = Program("impala")
    home: dict[str, Any] = {"process": "hub", "near": "learner", "restarts": 3}
    queue = p.add("queue", roles.Replay.queue, capacity=cfg.queue_capacity, **home)
    weights = p.add("weights", roles.WeightStore, hold_back=cfg.forced_lag, **home)
    p.add("learner", build_learner, cfg, queue.edge("sample", items=cfg.batch_unrolls), weights.edge("publish"), **home)
    for _ in range(cfg.actors):
        p.add("actor", build_actor, cfg, queue.edge("insert"), weights.edge("pull"), actor=True, restarts=3)
    add_evaluator(p, cfg, weights)
    return p
