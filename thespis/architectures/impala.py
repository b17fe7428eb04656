"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): actors run ahead on old weights; V-trace corrects the lag.

actor xN --unroll--> queue --batch--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import (
    add_evaluator,
    add_weights,
    build_local_policy,
    build_unroll_actor,
)
from thespis.architectures.learners import QueueLearnersConfig, add_group, build_queue_learner
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, Unrolls
from thespis.core.program import Program
from thespis.core.settings import inline

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
    group: QueueLearnersConfig = inline(QueueLearnersConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)
        self.group.check_parts(self, self.batch_unrolls, self.envs_per_actor)


def build_actor(ctx: Context, cfg: Config, insert: Insert, pull: Pull) -> roles.Actor:
    """An actor that starts the next unroll while it pulls weights."""
    return build_unroll_actor(ctx, cfg, insert, build_local_policy(ctx, cfg, pull, ahead=True))


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own actors."""
    p = Program("impala")
    group, inserts, pulls = add_group(p, cfg, cfg.group), [], []
    for learner in cfg.group.indices:
        with_learner = cfg.group.place(p, "learner", learner)
        queue = with_learner.add("queue", roles.Queue, capacity=cfg.queue_capacity)
        weights = add_weights(with_learner, hold_back=cfg.forced_lag)
        replace(with_learner, replicated=True).add(
            "learner",
            build_queue_learner,
            cfg,
            sample=queue.edge(roles.Queue.sample, items=cfg.batch_unrolls),
            publish=weights.publish,
            unrolls=cfg.batch_unrolls,
            group=group,
            learners=cfg.group.learners,
        )
        inserts.append(queue.edge(roles.Queue.insert))
        pulls.append(weights.pull)
    actors = p.at(restarts=3, counts_as_actor=True)
    for actor in range(cfg.actors):
        learner = cfg.group.learner_of(actor)
        actors.add("actor", build_actor, cfg, insert=inserts[learner], pull=pulls[learner])
    add_evaluator(p, cfg, pulls[0])
    return p
