"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace corrects the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import (
    add_evaluator,
    add_weights,
    build_local_policy,
    build_queue_learner,
    build_unroll_actor,
)
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, Unrolls
from thespis.core.program import Program

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Insert, Pull


@dataclass(frozen=True)
class Config(Experiment):
    """IMPALA. The defaults suit small control tasks; Atari ids use the settings of the paper's table G.1."""

    algorithm: Algorithm[Unrolls] = chosen(VTrace)
    batch_unrolls: Count = 1
    """Batch size in unrolls; each unroll holds all environments of one actor (paper: 32 unrolls of one
    environment)."""
    queue_capacity: Count = 1
    """Capacity of the queue in unrolls. A larger queue increases lag."""
    forced_lag: CountOrZero = 0
    """Delay weights by N updates, to study lag."""


def build_actor(ctx: Context, cfg: Config, insert: Insert, pull: Pull) -> roles.Actor:
    """An actor that starts the next unroll while it pulls weights."""
    return build_unroll_actor(ctx, cfg, insert, build_local_policy(ctx, cfg, pull, ahead=True))


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("impala")
    with_learner = p.at(process="learner", colocate="learner", restarts=3)
    queue = with_learner.add("queue", roles.Queue, capacity=cfg.queue_capacity)
    weights = add_weights(with_learner, hold_back=cfg.forced_lag)
    sample = queue.edge(roles.Queue.sample, items=cfg.batch_unrolls)
    publish = weights.publish
    with_learner.add("learner", build_queue_learner, cfg, sample=sample, publish=publish, unrolls=cfg.batch_unrolls)
    actors = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        actors.add("actor", build_actor, cfg, insert=queue.edge(roles.Queue.insert), pull=weights.pull)
    add_evaluator(p, cfg, weights.pull)
    return p
