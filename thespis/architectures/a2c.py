"""A2C: synchronous A3C (Mnih et al., 2016). Workers run in lock-step; one update averages all their gradients.

worker xN --gradients--> server (waits for all N, averages) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass

from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.sharding import (
    ServersConfig,
    add_servers,
    add_sharded_evaluator,
    add_workers,
    refuse_statistics,
)
from thespis.core.bounds import CountOrZero
from thespis.core.config import Experiment, Unrolls
from thespis.core.program import Program
from thespis.core.settings import inline


@dataclass(frozen=True)
class Config(Experiment):
    """A2C: synchronous workers. N workers equal one worker with N times the environments, spread over processes."""

    actors: int = 4
    """Number of worker processes; each steps its own environments and computes gradients."""
    envs_per_actor: int = 8
    """Environments per worker; the worker steps them as one batch."""
    servers: ServersConfig = inline(ServersConfig)
    backups: CountOrZero = 0
    """Backup workers: each update drops the gradients of the N slowest workers (Chen et al., 2016); with
    --workers-per-node, of the N slowest nodes."""
    algorithm: Algorithm[Unrolls] = chosen(lambda: VTrace(correction=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        self.servers.check(self, self.actors, self.backups)


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("a2c")
    servers = add_servers(p, cfg, mode="sync", quorum=cfg.servers.callers(cfg.actors) - cfg.backups)
    add_workers(p, cfg, servers)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
