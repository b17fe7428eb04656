"""Gorila (Nair et al., 2015, arXiv:1507.04296): bundles of actor, replay and learner share sharded parameters.

actor --unroll--> replay --transitions--> learner   (a bundle, xN)
learner xN --gradients--> server xS --parameters--> learner xN, actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from thespis import roles
from thespis.architectures.parameter_server import add_evaluator, add_servers
from thespis.architectures.values import Exploring, ValueExperiment, at_least_one, build_replay, exploring_actor, refuse
from thespis.config import OptimizerConfig
from thespis.errors import ThespisError
from thespis.experience.limiters import SamplesPerInsert
from thespis.program import Handle, Program

if TYPE_CHECKING:
    from thespis.roles.learner import Update
    from thespis.runtime.context import Context

__all__ = ["PRESETS", "Config", "program", "refuse"]


@dataclass(frozen=True)
class Config(Exploring, ValueExperiment):
    """Gorila. Learners push DQN gradients to parameter servers; old gradients and outliers are discarded."""

    actors: int = 2
    """Actors; with bundled replay each has a replay and a learner of its own (paper: 100)."""
    replay_mode: Literal["bundled", "global"] = "bundled"
    """bundled: actor, replay and learner together, each --replay.* for itself. global: one replay for all."""
    learners: int | None = None
    """global: learners that draw from the one replay; as many as actors unless given."""
    shards: int = 1
    """Servers the parameters are divided among, each with its own optimiser state and version (paper: 31)."""
    gradient_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """How gradients travel; the halves need half the bytes."""
    target_period: int = 100
    """Updates of the servers, by whichever learner, between copies of their parameters to a learner's target."""
    max_delay: int | None = 20
    """Gradients that are more updates behind than this are discarded by the server; None keeps all."""
    outlier_deviations: float | None = 4.0
    """A learner discards gradients whose loss is so many standard deviations above its mean; None keeps all."""
    outlier_memory: int = 1000
    """Batches over which that mean and deviation are taken; nothing is discarded before there were so many."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(kind="adagrad", learning_rate=0.02, clip=10.0)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "shards", "outlier_memory")
        if self.replay.shards != 1:
            raise ThespisError(
                "here every bundle has a replay of its own, or all share one: --replay.shards must stay 1"
            )
        if self.learners is not None and self.replay_mode == "bundled" and self.learners != self.actors:
            raise ThespisError("every bundle has one actor and one learner; leave off --learners, or share one replay")
        if self.learners is not None:
            at_least_one(self, "learners")
        if self.max_delay is not None and self.max_delay < 0:
            raise ThespisError(f"--max-delay is {self.max_delay}; give at least 0, or None to keep all gradients")
        if self.network.normalize_observations:
            raise ThespisError(
                "--network.normalize-observations needs one learner that sees all observations, and here there are "
                "several; leave it off, or wrap the environment"
            )

    @property
    def replays(self) -> int:
        return self.actors if self.replay_mode == "bundled" else 1

    @property
    def sharers(self) -> int:
        """Learners per replay."""
        return 1 if self.replay_mode == "bundled" else self.learners or self.actors


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {  # as for DQN; with AdaGrad, greedy returns are 336 and 381 after as many steps
        "total_steps": 60_000,
        "batch": 64,
        "n_step": 10,
        "target_period": 50,
        "replay": {"capacity": 20_000, "samples_per_insert": 8.0, "warm_up": 500},
        "reward": {"kind": "scale", "scale": 0.1},
        "network": {"hidden": [256, 256]},
        "optimizer": {"kind": "adam", "learning_rate": 2e-3, "anneal": True},
    },
}


def build_actor(ctx: Context, cfg: Config, insert: Any, *pulls: Any) -> roles.Actor:
    from thespis.architectures.parts import pulling_policy

    def epsilon(inserted: int) -> float:
        return cfg.epsilon(inserted * cfg.replays)  # bundles are alike, so the others have as much

    return exploring_actor(ctx, cfg, epsilon, insert, pulling_policy(ctx, cfg, pulls))


def build_learner(ctx: Context, cfg: Config, samples: Any, prioritise: Any, *edges: Any) -> roles.Learner:
    """`edges`: join and push of each server in turn."""
    from thespis.algorithms.dqn import DQNUpdate
    from thespis.algorithms.outliers import OutlierFilter
    from thespis.architectures.parts import worker_network
    from thespis.exchange.push_pull import PushPull
    from thespis.experience.sources import Draws

    made, clip, dtype = worker_network(ctx, cfg), cfg.optimizer.clip, cfg.gradient_dtype
    exchange = PushPull(ctx, made, edges[::2], edges[1::2], clip=clip, dtype=dtype, by_steps=False)
    # The answer to a push has the servers' parameters, so a copy made after one is a copy of these.
    update: Update = DQNUpdate(made, cfg, lambda: exchange.version.update // cfg.shards)
    if cfg.outlier_deviations is not None:
        update = OutlierFilter(update, cfg.outlier_deviations, cfg.outlier_memory)
    source = Draws(ctx, samples, cfg.batch, cfg.batches_per_draw, prioritise, cfg.sharers)
    return roles.Learner(ctx, source, update, exchange, None, cfg.budget)


def add_replay(p: Program, cfg: Config, **place: Any) -> Handle:
    band = SamplesPerInsert.of(cfg.replay, cfg.insert_items, cfg.sample_items)
    return p.add("replay", build_replay, cfg, capacity=cfg.replay.capacity, limiter=band, restarts=3, **place)


def add_learner(p: Program, cfg: Config, replay: Handle, servers: list[Handle], **place: Any) -> None:
    samples = (replay.edge("sample", items=cfg.sample_items),)
    prioritise = (replay.edge("prioritise"),) if cfg.replay.priority_exponent else ()
    edges = [server.edge(method) for server in servers for method in ("join", "push")]
    p.add("learner", build_learner, cfg, samples, prioritise, *edges, restarts=3, **place)


def add_actor(p: Program, cfg: Config, replay: Handle, servers: list[Handle], **place: Any) -> None:
    insert, pulls = replay.edge("insert", items=cfg.insert_items), [server.edge("pull") for server in servers]
    p.add("actor", build_actor, cfg, insert, *pulls, actor=True, restarts=3, **place)


def wire(p: Program, cfg: Config, servers: list[Handle]) -> Program:
    """Bundles around the servers, or learners and actors around one replay."""
    if cfg.replay_mode == "bundled":
        for bundle in range(cfg.actors):
            place = {"process": f"bundle-{bundle}", "near": f"bundle {bundle}"}
            replay = add_replay(p, cfg, **place)
            add_learner(p, cfg, replay, servers, **place)
            add_actor(p, cfg, replay, servers, **place)
    else:
        replay = add_replay(p, cfg)
        for _ in range(cfg.sharers):
            add_learner(p, cfg, replay, servers)
        for _ in range(cfg.actors):
            add_actor(p, cfg, replay, servers)
    add_evaluator(p, cfg, servers)
    return p


def program(cfg: Config) -> Program:
    p = Program("gorila")
    mode = "async" if cfg.max_delay is None else "stale"
    return wire(p, cfg, add_servers(p, cfg, mode=mode, max_staleness=cfg.max_delay or 0))
