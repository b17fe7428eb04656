"""A3C (Mnih et al., 2016, arXiv:1602.01783): workers act, differentiate and push on their own, without any lock-step.

worker xN --gradients--> server (shared RMSProp, applies each as it comes) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import worker_network
from thespis.architectures.sharding import (
    ServersConfig,
    acting_learner,
    add_servers,
    add_sharded_evaluator,
    build_worker,
    refuse_statistics,
)
from thespis.core.config import Experiment, OptimizerConfig, Unrolls
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import JoinShared


@dataclass(frozen=True)
class Config(Experiment):
    """A3C. Workers never wait for each other; each gradient is applied to parameters that others have changed since."""

    actors: int = 4
    """Workers; each steps its own environments and computes its own gradients."""
    envs_per_actor: int = 8
    """Environments each worker steps side by side."""
    servers: ServersConfig = inline(ServersConfig)
    end_with_episode: bool = True
    """With one environment per worker, end an unroll with its episode (paper); with several, episodes follow on."""
    hogwild: bool = False
    """Update parameters and statistics in place in shared memory, without locks or messages (paper); local only."""
    algorithm: Algorithm[Unrolls] = chosen(
        lambda: VTrace(
            correction=False,
            optimizer=OptimizerConfig(kind="rmsprop", learning_rate=3e-3, epsilon=1e-5, anneal=True, clip=0.5),
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_statistics(self)
        if self.hogwild and self.on != "local":
            raise ThespisError(
                f"--hogwild shares memory between processes of one machine; use --on local, not {self.on}"
            )
        if self.hogwild and (self.servers.shards != 1 or self.servers.gradient_dtype != "float32"):
            raise ThespisError("--hogwild sends no gradients anywhere; leave off --shards and --gradient-dtype")

    @property
    def cut_windows(self) -> bool:
        return self.end_with_episode and self.envs_per_actor == 1


def build_hogwild(ctx: Context, cfg: Config, join: JoinShared) -> roles.Learner:
    from thespis.exchange.hogwild import Hogwild

    network = worker_network(ctx, cfg)
    exchange = Hogwild(ctx, network, cfg.algorithm.optimizer, join, cfg.budget)
    return acting_learner(ctx, cfg, network, exchange, cfg.cut_windows)


def program(cfg: Config) -> Program:
    p = Program("a3c")
    workers, optimizer = p.at(restarts=3, counts_as_actor=True), cfg.algorithm.optimizer
    if cfg.hogwild:
        p.notes.append("hogwild: workers change parameters and statistics in shared memory, without locks")
        # No restarts: workers could not tell that the memory they hold is no longer the server's.
        server = p.at().add("server", roles.SharedParameters, optimizer=optimizer, workers=cfg.actors)
        for _ in range(cfg.actors):
            workers.add("worker", build_hogwild, cfg, join=server.edge(roles.SharedParameters.join))
        add_sharded_evaluator(p, cfg, (server.edge(roles.SharedParameters.pull),))
        return p
    servers = add_servers(p, cfg)
    for _ in range(cfg.actors):
        workers.add("worker", build_worker, cfg, joins=servers.joins, pushes=servers.pushes, cut=cfg.cut_windows)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
