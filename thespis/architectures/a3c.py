"""A3C (Mnih et al., 2016, arXiv:1602.01783): workers act, compute gradients and push them without lock-step.

worker xN --gradients--> server (shared RMSProp, applies each as it comes) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.parts.policies import build_worker_network
from thespis.architectures.sharding import (
    ServersConfig,
    add_servers,
    add_sharded_evaluator,
    add_workers,
    build_acting_learner,
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
    """A3C: asynchronous workers. They never wait for each other, so every gradient is slightly stale."""

    actors: int = 4
    """Number of worker processes; each steps its own environments and computes gradients."""
    envs_per_actor: int = 8
    """Environments per worker; the worker steps them as one batch."""
    servers: ServersConfig = inline(ServersConfig)
    end_with_episode: bool = True
    """End an unroll when its episode ends (paper: on). This applies only with one environment per worker."""
    hogwild: bool = False
    """Update parameters and optimiser statistics in shared memory, without locks or messages (paper: on). Needs --on
    local."""
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
                f"--hogwild needs memory that processes of one machine share; use --on local, not {self.on}"
            )
        if self.hogwild and (self.servers.shards != 1 or self.servers.compression.compresses):
            raise ThespisError("--hogwild sends no gradients; leave off --shards and --gradients")
        if self.hogwild and self.servers.workers_per_node is not None:
            raise ThespisError("--hogwild runs on one machine; leave off --workers-per-node")
        self.servers.check(self, self.actors)

    @property
    def cut_unrolls(self) -> bool:
        """Whether unrolls end with their episode."""
        return self.end_with_episode and self.envs_per_actor == 1


def build_hogwild(ctx: Context, cfg: Config, join: JoinShared) -> roles.Learner:
    """A worker that updates parameters in shared memory."""
    from thespis.exchange.hogwild import Hogwild

    network = build_worker_network(ctx, cfg)
    exchange = Hogwild(ctx, network, cfg.algorithm.optimizer, join, cfg.budget)
    return build_acting_learner(ctx, cfg, network, exchange, cfg.cut_unrolls)


def program(cfg: Config) -> Program:
    """Wire the figure above; with `--hogwild` the server only owns the shared memory."""
    p = Program("a3c")
    if cfg.hogwild:
        workers, optimizer = p.at(restarts=3, counts_as_actor=True), cfg.algorithm.optimizer
        p.notes.append("hogwild: workers change parameters and statistics in shared memory, without locks")
        # No restarts: workers would keep writing to the memory of the dead server.
        server = p.at().add("server", roles.SharedParameters, optimizer=optimizer, workers=cfg.actors)
        for _ in range(cfg.actors):
            workers.add("worker", build_hogwild, cfg, join=server.edge(roles.SharedParameters.join))
        add_sharded_evaluator(p, cfg, (server.edge(roles.SharedParameters.pull),))
        return p
    servers = add_servers(p, cfg)
    add_workers(p, cfg, servers, cfg.cut_unrolls)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
