"""An architecture of your own in 40 lines: every update takes one unroll from each actor.

    actor xN --unroll--> queue --N unrolls--> learner --weights--> store --pull--> actor xN

Run it with `thespis train examples/lockstep.py --env CartPole-v1`, on any runtime, and with any algorithm that learns
from unrolls: `--algorithm a2c`, or one of your own (custom_algorithm.py).
"""

from dataclasses import dataclass

from thespis import (
    Algorithm,
    Context,
    Count,
    Experiment,
    OptimizerConfig,
    Program,
    QueueSource,
    Unrolls,
    VTrace,
    build_central_learner,
    build_environments,
    build_learner_network,
    build_local_policy,
    chosen,
    edges,
    roles,
)


@dataclass(frozen=True)
class Config(Experiment):
    """Settings of the architecture. Each field is a flag, and so is each setting of the algorithm."""

    algorithm: Algorithm[Unrolls] = chosen(lambda: VTrace(optimizer=OptimizerConfig(learning_rate=5e-3, clip=0.5)))
    publish_every: Count = 1
    """Publish weights every N updates."""


def build_actor(ctx: Context, cfg: Config, insert: edges.Insert, pull: edges.Pull) -> roles.Actor:
    envs = build_environments(ctx, cfg, cfg.envs_per_actor)
    return roles.Actor(ctx, envs, build_local_policy(ctx, cfg, pull), insert, cfg.algorithm.items.unroll_length)


def build_learner(ctx: Context, cfg: Config, sample: edges.Sample, publish: edges.Publish) -> roles.Learner:
    batches = QueueSource(ctx, sample, cfg.actors)
    return build_central_learner(ctx, cfg, batches, build_learner_network(ctx, cfg), publish, cfg.publish_every)


def program(cfg: Config) -> Program:
    p = Program("lockstep")
    storage, separate = p.at(process="storage"), p.at()
    queue = storage.add("queue", roles.Queue, capacity=cfg.actors)
    weights = storage.add("weights", roles.WeightStore)
    sample, publish = queue.edge(roles.Queue.sample, items=cfg.actors), weights.edge(roles.WeightStore.publish)
    separate.add("learner", build_learner, cfg, sample=sample, publish=publish)
    for _ in range(cfg.actors):
        insert, pull = queue.edge(roles.Queue.insert), weights.edge(roles.WeightStore.pull)
        separate.add("actor", build_actor, cfg, insert=insert, pull=pull)
    return p
