"""Gorila (Nair et al., 2015, arXiv:1507.04296): bundles of actor, replay and learner share sharded parameters.

actor --unroll--> replay --transitions--> learner   (a bundle, xN)
learner xN --gradients--> server xS --parameters--> learner xN, actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.dqn import DQN
from thespis.architectures.builders import add_replay, refuse_shards, validate_replay
from thespis.architectures.sharding import (
    Outliers,
    ServersConfig,
    add_bundle,
    add_nodes,
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
    """Gorila. Learners push gradients to parameter servers, and the system discards stale gradients and outliers."""

    actors: int = 2
    """Number of actors; with bundled replay each has its own replay buffer and learner (paper: 100)."""
    envs_per_actor: int = 8
    """Environments per actor; the actor steps them as one batch."""
    replay_mode: Literal["bundled", "global"] = "bundled"
    """Replay mode: bundled (one replay buffer per actor and learner; --replay.* applies to each), or global (one for
    all)."""
    learners: RoleCount | None = None
    """Number of learners with --replay-mode global; by default one per actor."""
    servers: ServersConfig = inline(ServersConfig)
    max_delay: CountOrZero | None = 20
    """Discard gradients that are more than N updates stale; None keeps all."""
    outlier_deviations: Positive | None = 4.0
    """Discard gradients if the loss exceeds its running mean by N standard deviations; None keeps all."""
    outlier_memory: Count = 1000
    """Number of batches in the running mean and deviation of the loss. The filter starts after this many batches."""
    algorithm: Algorithm[Transitions] = chosen(
        lambda: DQN(optimizer=OptimizerConfig(kind="adagrad", learning_rate=0.02, clip=10.0))
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        refuse_shards(self, "gorila has one replay per bundle, or one for all")
        if self.learners is not None and self.replay_mode == "bundled" and self.learners != self.actors:
            raise ThespisError(
                "every bundle has one actor and one learner; leave off --learners, or give --replay-mode global"
            )
        self.servers.check(self, self.learners or self.actors)

    @property
    def outliers(self) -> Outliers | None:
        """The outlier filter of the learners; None if it is off."""
        return None if self.outlier_deviations is None else Outliers(self.outlier_deviations, self.outlier_memory)


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("gorila")
    mode = "async" if cfg.max_delay is None else "stale"
    servers = add_servers(p, cfg, mode=mode, max_staleness=cfg.max_delay or 0)
    if cfg.replay_mode == "bundled":
        for bundle, own in enumerate(add_nodes(p, cfg, servers, cfg.actors)):
            add_bundle(p, cfg, bundle, own, cfg.outliers)
    else:
        place, learners = p.at(restarts=3), cfg.learners or cfg.actors
        replay = add_replay(p, cfg, place)
        for own in add_nodes(p, cfg, servers, learners):
            add_replay_worker(place, cfg, replay, own, learners, cfg.outliers)
        for _ in range(cfg.actors):
            add_sharded_actor(place, cfg, replay, servers, replays=1)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
