"""Parameter server (Dean et al., 2012; Li et al., 2014): workers push gradients to shards, and get parameters back.

worker xN --gradients--> server xS --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import refuse_shards, validate_replay
from thespis.architectures.sharding import (
    ServersConfig,
    add_bundle,
    add_servers,
    add_sharded_evaluator,
    build_worker,
    refuse_statistics,
)
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, Transitions, Unrolls
from thespis.core.program import Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """Workers and parameter servers. The mode says when gradients take effect and what becomes of late ones.

    A worker acts and differentiates; with an algorithm that learns from a replay it has one of its own.
    """

    actors: int = 4
    """Workers; each steps its own environments and computes its own gradients."""
    envs_per_actor: int = 8
    """Environments each worker steps side by side."""
    servers: ServersConfig = inline(ServersConfig)
    mode: Literal["async", "sync", "stale", "softsync"] = "async"
    """async: apply each as it comes. sync: wait for all. stale: bound the age. softsync: average every few."""
    backups: CountOrZero = 0
    """sync: workers that an update does not wait for; the last ones to come are dropped."""
    average: Count = 2
    """softsync: gradients per update."""
    max_staleness: CountOrZero = 8
    """stale: how many updates a gradient may be behind (refuse), or pushes a worker may be ahead (wait)."""
    when_stale: Literal["refuse", "wait"] = "refuse"
    """stale: refuse gradients that are too old, or let fast workers wait for the slowest."""
    staleness_aware: bool = False
    """Divide the learning rate by the staleness of each gradient (Zhang et al., 2015)."""
    algorithm: Algorithm[Unrolls | Transitions] = chosen(lambda: VTrace(correction=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        if self.replays:
            refuse_shards(self, "here every worker has a replay of its own")

    @property
    def replays(self) -> bool:
        """Whether every worker has a replay."""
        return self.algorithm.items.KIND == Transitions.KIND

    @property
    def quorum(self) -> int:
        """Gradients per update."""
        return {"sync": self.actors - self.backups, "softsync": self.average}.get(self.mode, 1)


def validate(cfg: Config, spaces: Spaces) -> None:
    if cfg.replays:
        validate_replay(cfg, spaces)


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
    workers = p.at(restarts=3, counts_as_actor=True)
    for worker in range(cfg.actors):
        if cfg.replays:
            add_bundle(p, cfg, worker, servers)
        else:
            workers.add("worker", build_worker, cfg, joins=servers.joins, pushes=servers.pushes)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
