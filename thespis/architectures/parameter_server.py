"""Parameter server (Dean et al., 2012; Li et al., 2014): workers push gradients to shards and receive parameters.

worker xN --gradients--> server xS --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import refuse_shards, validate_replay
from thespis.architectures.sharding import (
    ServersConfig,
    add_bundle,
    add_nodes,
    add_servers,
    add_sharded_evaluator,
    add_workers,
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
    """Workers and parameter servers. --mode sets when gradients are applied and how stale ones are handled.

    A worker acts and computes gradients. If the algorithm learns from a replay buffer, each worker has its own.
    """

    actors: int = 4
    """Number of worker processes; each steps its own environments and computes gradients."""
    envs_per_actor: int = 8
    """Environments per worker; the worker steps them as one batch."""
    servers: ServersConfig = inline(ServersConfig)
    mode: Literal["async", "sync", "stale", "softsync"] = "async"
    """Mode: async (apply each gradient on arrival), sync (wait for all workers), stale (bound the staleness), or
    softsync (average every --average gradients)."""
    backups: CountOrZero = 0
    """Backup workers, for sync: each update drops the gradients of the N slowest workers; with --workers-per-node, of
    the N slowest nodes."""
    average: Count = 2
    """Gradients per update, for softsync."""
    max_staleness: CountOrZero = 8
    """Staleness bound, for stale: updates that a gradient may be behind (--when-stale refuse), or pushes that a worker
    may be ahead (wait)."""
    when_stale: Literal["refuse", "wait"] = "refuse"
    """Handling of stale gradients, for stale: refuse them, or make fast workers wait for the slowest."""
    staleness_aware: bool = False
    """Divide the learning rate by the staleness of each gradient (Zhang et al., 2015)."""
    algorithm: Algorithm[Unrolls | Transitions] = chosen(lambda: VTrace(correction=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        self.servers.check(self, self.actors, self.backups if self.mode == "sync" else 0)
        if self.replays:
            refuse_shards(self, "every worker has its own replay")

    @property
    def replays(self) -> bool:
        """Whether every worker has a replay buffer."""
        return self.algorithm.items.KIND == Transitions.KIND

    @property
    def quorum(self) -> int:
        """Gradients per update."""
        return {"sync": self.servers.callers(self.actors) - self.backups, "softsync": self.average}.get(self.mode, 1)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse replay settings that cannot work, if workers have a replay."""
    if cfg.replays:
        validate_replay(cfg, spaces)


def program(cfg: Config) -> Program:
    """Wire the figure above; a worker with a replay is a bundle in one process."""
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
    if cfg.replays:
        for bundle, own in enumerate(add_nodes(p, cfg, servers, cfg.actors)):
            add_bundle(p, cfg, bundle, own)
    else:
        add_workers(p, cfg, servers)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
