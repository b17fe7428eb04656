"""A2C: the synchronous form of A3C (Mnih et al., 2016). Workers in lock-step, one update of all their gradients.

worker xN --gradients--> server (waits for all N, averages) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass

from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.sharding import (
    ServersConfig,
    add_servers,
    add_sharded_evaluator,
    build_worker,
    refuse_statistics,
)
from thespis.core.bounds import CountOrZero
from thespis.core.config import Experiment, Unrolls
from thespis.core.program import Program
from thespis.core.settings import inline


@dataclass(frozen=True)
class Config(Experiment):
    """A2C. Equal to one worker with N times the environments, but spread over processes."""

    actors: int = 4
    """Workers; each steps its own environments and computes its own gradients."""
    envs_per_actor: int = 8
    """Environments each worker steps side by side."""
    servers: ServersConfig = inline(ServersConfig)
    backups: CountOrZero = 0
    """Workers that an update does not wait for; the last ones to come are dropped (Chen et al., 2016)."""
    algorithm: Algorithm[Unrolls] = chosen(lambda: VTrace(correction=False))

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)


def program(cfg: Config) -> Program:
    p = Program("a2c")
    servers = add_servers(p, cfg, mode="sync", quorum=cfg.actors - cfg.backups)
    workers = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        workers.add("worker", build_worker, cfg, joins=servers.joins, pushes=servers.pushes)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
