"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace repairs the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import add_evaluator, build_queue_learner, local_policy, unroll_actor
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, Unrolls
from thespis.core.program import Program

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Insert, Pull


@dataclass(frozen=True)
class Config(Experiment):
    """IMPALA. The defaults solve small control tasks in seconds; Atari ids take the paper's table G.1 instead."""

    algorithm: Algorithm[Unrolls] = chosen(VTrace)
    batch_unrolls: Count = 1
    """Unrolls per update; each holds all environments of one actor (paper: 32 unrolls of one environment)."""
    queue_capacity: Count = 1
    """Unrolls that may wait for the learner; small, because waiting is lag."""
    forced_lag: CountOrZero = 0
    """Give actors weights that are this many updates old, to study lag."""


def build_actor(ctx: Context, cfg: Config, insert: Insert, pull: Pull) -> roles.Actor:
    return unroll_actor(ctx, cfg, insert, local_policy(ctx, cfg, pull, ahead=True))


def program(cfg: Config) -> Program:
    p = Program("impala")
    beside = p.at(process="learner", colocate="learner", restarts=3)
    queue = beside.add("queue", roles.Replay.queue, capacity=cfg.queue_capacity)
    weights = beside.add("weights", roles.WeightStore, hold_back=cfg.forced_lag)
    sample, publish = queue.edge(roles.Replay.sample, items=cfg.batch_unrolls), weights.edge(roles.WeightStore.publish)
    beside.add("learner", build_queue_learner, cfg, sample=sample, publish=publish, unrolls=cfg.batch_unrolls)
    actors = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        insert, pull = queue.edge(roles.Replay.insert), weights.edge(roles.WeightStore.pull)
        actors.add("actor", build_actor, cfg, insert=insert, pull=pull)
    add_evaluator(p, cfg, weights.edge(roles.WeightStore.pull))
    return p
