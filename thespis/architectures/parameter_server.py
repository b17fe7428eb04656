"""Parameter server (Dean et al., 2012; Li et al., 2014): workers push gradients to shards, and get parameters back.

worker xN --gradients--> server xS --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from thespis import roles
from thespis.architectures.evaluating import Evaluated
from thespis.architectures.values import Exploring, QLearning
from thespis.architectures.values import refuse as refuse_values
from thespis.config import Experiment, NetworkConfig, OptimizerConfig, RewardConfig
from thespis.errors import ThespisError
from thespis.program import Handle, Program

if TYPE_CHECKING:
    from thespis.architectures import gorila
    from thespis.budget import Budget
    from thespis.envs.spaces import Spaces
    from thespis.runtime.context import Context


class Sharded(Protocol):
    """What servers are told, whoever pushes to them."""

    @property
    def optimizer(self) -> OptimizerConfig: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def shards(self) -> int: ...


@dataclass(frozen=True)
class Workers(Experiment):
    """What all architectures have in common whose workers act, differentiate and push. `actors` are the workers."""

    actors: int = 4
    """Workers; each steps its own environments and computes its own gradients."""
    envs_per_actor: int = 8
    """Environments each worker steps side by side."""
    unroll_length: int = 16
    """Steps per gradient and environment (t_max in the A3C paper, 5 there)."""
    discount: float = 0.99
    """Discount factor."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the losses over the steps of a gradient (A3C paper: sum; the learning rate goes with it)."""
    shards: int = 1
    """Servers the parameters are divided among, each with its own optimiser state and version."""
    gradient_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """How gradients travel; the halves need half the bytes."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("unroll_length", "shards"):
            if getattr(self, name) < 1:
                raise ThespisError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1")
        if self.network.normalize_observations:
            raise ThespisError(
                "--network.normalize-observations needs one learner that sees all observations, and here each worker "
                "sees its own; leave it off, or wrap the environment"
            )

    @property
    def correction(self) -> bool:
        """Whether acting and learning differ in their weights. If not, V-trace is the n-step return."""
        return False

    @property
    def cut_windows(self) -> bool:
        """Whether an unroll ends with the episode."""
        return False

    rho_bar = c_bar = pg_rho_bar = trace_decay = 1.0  # of V-trace, as in the IMPALA paper


@dataclass(frozen=True)
class WorkerDQN(Exploring, QLearning):
    """--algorithm dqn: each worker's replay and Q-learning, with a network of action values for the one above."""


@dataclass(frozen=True)
class Config(Workers):
    """Workers and parameter servers. The mode says when gradients take effect and what becomes of late ones."""

    algorithm: Literal["a2c", "vtrace", "dqn"] = "a2c"
    """a2c: n-step returns, on-policy. vtrace: a worker acts on while its gradient is under way, and corrects it.
    dqn: a worker is an actor, a replay of its own, and a learner (--dqn.*)."""
    mode: Literal["async", "sync", "stale", "softsync"] = "async"
    """async: apply each as it comes. sync: wait for all. stale: bound the age. softsync: average every few."""
    backups: int = 0
    """sync: workers that an update does not wait for; the last ones to come are dropped."""
    average: int = 2
    """softsync: gradients per update."""
    max_staleness: int = 8
    """stale: how many updates a gradient may be behind (refuse), or pushes a worker may be ahead (wait)."""
    when_stale: Literal["refuse", "wait"] = "refuse"
    """stale: refuse gradients that are too old, or let fast workers wait for the slowest."""
    staleness_aware: bool = False
    """Divide the learning rate by the staleness of each gradient (Zhang et al., 2015)."""
    dqn: WorkerDQN = field(default_factory=WorkerDQN)

    @property
    def correction(self) -> bool:
        return self.algorithm == "vtrace"

    @property
    def quorum(self) -> int:
        """Gradients per update."""
        return {"sync": self.actors - self.backups, "softsync": self.average}.get(self.mode, 1)

    @property
    def policy_network(self) -> NetworkConfig:
        """The settings of the network that is trained."""
        return self.dqn.network if self.algorithm == "dqn" else self.network

    @property
    def bundles(self) -> gorila.Config:
        """The workers of --algorithm dqn are Gorila's bundles, without its filters: here the mode decides."""
        from thespis.architectures import gorila  # it builds on this file

        shared = [part.name for part in fields(Experiment)]
        shared += ["unroll_length", "discount", "shards", "gradient_dtype", "reward", "optimizer"]
        return gorila.Config(
            **{name: getattr(self, name) for name in shared}, **vars(self.dqn), max_delay=None, outlier_deviations=None
        )


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 300_000,  # the learning rate anneals over it
        "dqn": {  # as for DQN; 60,000 steps are enough for it
            "batch": 64,
            "n_step": 10,
            "target_period": 50,
            "replay": {"capacity": 20_000, "warm_up": 500},
            "network": {"hidden": [256, 256]},
        },
    }
}


def build_worker(ctx: Context, cfg: Workers, *edges: Any) -> roles.Learner:
    """`edges`: join and push of each server in turn."""
    from thespis.architectures.parts import acting_learner, worker_network
    from thespis.exchange.push_pull import PushPull

    made = worker_network(ctx, cfg)
    exchange = PushPull(
        ctx,
        made,
        edges[::2],
        edges[1::2],
        clip=cfg.optimizer.clip,
        dtype=cfg.gradient_dtype,
        by_steps=cfg.reduction == "mean",
    )
    return acting_learner(ctx, cfg, made, exchange)


def build_evaluator(ctx: Context, cfg: Evaluated, *pulls: Any) -> roles.Evaluator:
    from thespis.architectures.parts import environments, pulling_policy

    return roles.Evaluator(
        ctx,
        make_envs=lambda number: environments(ctx, cfg, number),
        make_policy=lambda: pulling_policy(ctx, cfg, pulls),
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
    )


def add_servers(p: Program, cfg: Sharded, **rule: Any) -> list[Handle]:
    """The shards, each with a slice of the parameters; `rule`: by which gradients take effect."""
    settings = {"optimizer": cfg.optimizer, "budget": cfg.budget, **rule}
    return [p.add("server", roles.ParameterServer, **settings, restarts=3) for _ in range(cfg.shards)]


def add_evaluator(p: Program, cfg: Evaluated, servers: list[Handle]) -> None:
    if cfg.eval_episodes:
        p.add("evaluator", build_evaluator, cfg, *(server.edge("pull") for server in servers), cpus=0, restarts=3)


def wire(p: Program, cfg: Workers, servers: list[Handle]) -> Program:
    """Every worker calls every server; so does the evaluator."""
    edges = [server.edge(method) for server in servers for method in ("join", "push")]
    for _ in range(cfg.actors):
        p.add("worker", build_worker, cfg, *edges, actor=True, restarts=3)
    add_evaluator(p, cfg, servers)
    return p


def refuse(cfg: Config, spaces: Spaces) -> None:
    if cfg.algorithm == "dqn":
        refuse_values(cfg.bundles, spaces)


def program(cfg: Config) -> Program:
    p = Program("parameter-server")
    servers = add_servers(
        p,
        cfg,
        mode=cfg.mode,
        quorum=cfg.quorum,
        max_staleness=cfg.max_staleness,
        when_stale=cfg.when_stale,
        staleness_aware=cfg.staleness_aware,
    )
    if cfg.algorithm == "dqn":
        from thespis.architectures import gorila

        return gorila.wire(p, cfg.bundles, servers)
    return wire(p, cfg, servers)
