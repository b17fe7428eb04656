"""SEED RL (Espeholt et al., 2020, arXiv:1910.06591): actors only step environments; one process infers and learns.

actor xN --observations--> inference --unroll--> queue or replay --batch--> learner
actor xN <----actions----- inference <--weights, within the process-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.r2d2 import Sequences
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    add_weights,
    build_inference,
    build_remote_actor,
    refuse_shards,
    validate_replay,
)
from thespis.architectures.inference_channels import validate_transport
from thespis.architectures.learners import (
    GroupWiring,
    QueueLearnersConfig,
    add_group,
    add_replay_learner,
    build_queue_learner,
    build_rounds_learner,
)
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, InferenceConfig, Rounds, Unrolls
from thespis.core.errors import ThespisError
from thespis.core.program import Placement, Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.core.edges import Publish
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class SeedLearnersConfig(QueueLearnersConfig):
    """Several learners, each with its own queue or replay."""

    FIXED: ClassVar[tuple[str, ...]] = ("learners",)  # a saved replay belongs to one of this many learners


@dataclass(frozen=True)
class Config(Experiment):
    """SEED RL with V-trace or APPO (queue), R2D2 (replay buffer), or PPO or TRPO (on-policy rounds)."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    algorithm: Algorithm[Unrolls | Rounds | Sequences] = chosen(VTrace)
    inference: InferenceConfig = inline(InferenceConfig)
    group: SeedLearnersConfig = inline(SeedLearnersConfig)
    batch_unrolls: Count = 1
    """Batch size in unrolls, for algorithms with a queue; each unroll holds all environments of one actor."""
    queue_capacity: Count = 1
    """Capacity of the queue in unrolls. A larger queue increases lag."""
    forced_lag: CountOrZero = 0
    """Delay weights by N updates, to study lag, for algorithms with a queue."""
    publish_every: Count = 1
    """Publish weights every N updates; must be 1 for PPO and TRPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self, equal=True)
        self.inference.check(self, self.actors_per_learner)
        self.algorithm.check_batch(self.actors_per_learner * self.envs_per_actor)
        if self.kind == Sequences.KIND and self.group.preempt_share < 1.0:
            raise ThespisError(f"--preempt is for batches from a queue, but {self.algorithm.name} learns from a replay")
        unrolls = self.inference.groups * (self.actors_per_learner if self.kind == Rounds.KIND else self.batch_unrolls)
        self.group.check_parts(self, unrolls, self.envs_per_actor // self.inference.groups)
        queued = (self.batch_unrolls, self.queue_capacity, self.forced_lag) != (1, 1, 0)
        if queued and self.kind != Unrolls.KIND:
            raise ThespisError(
                f"{self.algorithm.name} has no queue of unrolls; leave off --batch-unrolls, --queue-capacity and "
                "--forced-lag"
            )
        if self.publish_every != 1 and self.kind == Rounds.KIND:
            raise ThespisError("every round waits for the next version, so --publish-every must stay 1")

    @property
    def actors_per_learner(self) -> int:
        """Number of actors of each learner and inference server."""
        return self.actors // self.group.learners

    @property
    def kind(self) -> str:
        """The kind of item that the algorithm learns from."""
        return str(self.algorithm.items.KIND)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a replay or a transport that cannot work."""
    if cfg.kind == Sequences.KIND:
        validate_replay(cfg, spaces)
        refuse_shards(cfg, "seed keeps the replay in the learner's process")
    validate_transport(cfg.inference)


def add_learner(p: Program, cfg: Config, central: Placement, publish: Publish, group: GroupWiring) -> dict[str, Any]:
    """Add a learner and its queue or replay. Returns the insert edge as keyword arguments of `build_inference`."""
    threaded, every, learners = replace(central, thread=True, replicated=True), cfg.publish_every, cfg.group.learners
    if cfg.kind == Sequences.KIND:
        replay = add_replay(p, cfg, central, cfg.actors_per_learner, learners)
        add_replay_learner(threaded, cfg, replay, publish, every, group)
        return {"insert_stream": replay.insert(0)}
    groups, rounds = cfg.inference.groups, cfg.kind == Rounds.KIND  # an unroll holds one group of environments
    unrolls = groups * (cfg.actors_per_learner if rounds else cfg.batch_unrolls)
    queue = central.add("queue", roles.Queue, capacity=unrolls if rounds else cfg.queue_capacity * groups)
    sample = queue.edge(roles.Queue.sample, items=unrolls)
    rest: Any = {"sample": sample, "publish": publish, "unrolls": unrolls, "group": group, "learners": learners}
    if rounds:
        threaded.add("learner", build_rounds_learner, cfg, **rest)
    else:
        threaded.add("learner", build_queue_learner, cfg, **rest, publish_every=every)
    return {"insert": queue.edge(roles.Queue.insert), "lockstep": rounds}


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; inference server, storage and learner share one process."""
    p = Program("seed")
    cfg = replace(cfg, inference=cfg.inference.absolute())
    group, acts, pulls = add_group(p, cfg, cfg.group), [], []
    for learner in cfg.group.indices:
        central = cfg.group.place(p, "learner", learner)
        weights = add_weights(central, hold_back=cfg.forced_lag)
        rest: Any = add_learner(p, cfg, central, weights.publish, group) | {"actors": cfg.actors_per_learner}
        inference = central.add("inference", build_inference, cfg, cfg.inference, following=weights.following, **rest)
        acts.append(inference.edge(roles.InferenceServer.act))
        pulls.append(weights.pull)
    actors = p.at(restarts=3, counts_as_actor=True)
    for actor in range(cfg.actors):
        actors.add("actor", build_remote_actor, cfg, cfg.inference, act=acts[cfg.group.learner_of(actor)])
    add_evaluator(p, cfg, pulls[0])
    return p
