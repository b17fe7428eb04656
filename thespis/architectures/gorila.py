"""Gorila (Nair et al., 2015, arXiv:1507.04296): bundles of actor, replay and learner share sharded parameters.

actor --unroll--> replay --transitions--> learner   (a bundle, xN)
learner xN --gradients--> server xS --parameters--> learner xN, actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.dqn import DQN
from thespis.architectures.builders import add_replay, refuse_shards, validate_replay
from thespis.architectures.sharding import (
    Outliers,
    ServersConfig,
    add_bundle,
    add_replay_worker,
    add_servers,
    add_sharded_actor,
    add_sharded_evaluator,
    refuse_statistics,
)
from thespis.core.bounds import Count, CountOrZero, Positive, RoleCount
from thespis.core.config import Experiment, OptimizerConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.settings import inline

validate = validate_replay


@dataclass(frozen=True)
class Config(Experiment):
    """Gorila. Learners push gradients to parameter servers; old gradients and outliers are discarded."""

    actors: int = 2
    """Actors; with bundled replay each has a replay and a learner of its own (paper: 100)."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side."""
    replay_mode: Literal["bundled", "global"] = "bundled"
    """bundled: actor, replay and learner together, each --replay.* for itself. global: one replay for all."""
    learners: RoleCount | None = None
    """global: learners that draw from the one replay; as many as actors unless given."""
    servers: ServersConfig = inline(ServersConfig)
    max_delay: CountOrZero | None = 20
    """Gradients that are more updates behind than this are discarded by the server; None keeps all."""
    outlier_deviations: Positive | None = 4.0
    """A learner discards gradients whose loss is so many standard deviations above its mean; None keeps all."""
    outlier_memory: Count = 1000
    """Batches over which that mean and deviation are taken; nothing is discarded before there were so many."""
    algorithm: Algorithm[Transitions] = chosen(
        lambda: DQN(optimizer=OptimizerConfig(kind="adagrad", learning_rate=0.02, clip=10.0))
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        refuse_shards(self, "here every bundle has a replay of its own, or all share one")
        if self.learners is not None and self.replay_mode == "bundled" and self.learners != self.actors:
            raise ThespisError("every bundle has one actor and one learner; leave off --learners, or share one replay")

    @property
    def outliers(self) -> Outliers | None:
        return None if self.outlier_deviations is None else Outliers(self.outlier_deviations, self.outlier_memory)


def program(cfg: Config) -> Program:
    p = Program("gorila")
    mode = "async" if cfg.max_delay is None else "stale"
    servers = add_servers(p, cfg, mode=mode, max_staleness=cfg.max_delay or 0)
    if cfg.replay_mode == "bundled":
        for bundle in range(cfg.actors):
            add_bundle(p, cfg, bundle, servers, cfg.outliers)
    else:
        place, learners = p.at(restarts=3), cfg.learners or cfg.actors
        replay = add_replay(p, cfg, place)
        for _ in range(learners):
            add_replay_worker(place, cfg, replay, servers, learners, cfg.outliers)
        for _ in range(cfg.actors):
            add_sharded_actor(place, cfg, replay, servers, replays=1)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
