"""An architecture of your own in 40 lines: every update takes one unroll from each actor.

    actor xN --unroll--> queue --N unrolls--> learner --weights--> store --pull--> actor xN

Run it with `thespis train examples/lockstep.py --env CartPole-v1`, on any runtime.
"""

from dataclasses import dataclass, field

from thespis import roles
from thespis.config import Experiment, NetworkConfig, OptimizerConfig
from thespis.program import Program


@dataclass(frozen=True)
class Config(Experiment):
    unroll_length: int = 16
    """Steps per unroll."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=5e-3, clip=0.5))


def build_actor(ctx, cfg, insert, pull) -> roles.Actor:
    from thespis.architectures.parts import environments, local_policy

    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return roles.Actor(ctx, envs, local_policy(ctx, cfg, pull), insert, cfg.unroll_length)


def build_learner(ctx, cfg, sample, publish) -> roles.Learner:
    from thespis.algorithms.actor_critic import VTraceUpdate
    from thespis.architectures.impala import Config as Losses
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Batches

    update = VTraceUpdate(learner_network(ctx, cfg), Losses())
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    return roles.Learner(ctx, Batches(ctx, sample, cfg.actors), update, exchange, publish, cfg.budget)


def program(cfg):
    p = Program("lockstep")
    queue = p.add("queue", roles.Replay.queue, capacity=cfg.actors, process="services")
    weights = p.add("weights", roles.WeightStore, process="services")
    p.add("learner", build_learner, cfg, queue.edge("sample", items=cfg.actors), weights.edge("publish"))
    for _ in range(cfg.actors):
        p.add("actor", build_actor, cfg, queue.edge("insert"), weights.edge("pull"))
    return p
